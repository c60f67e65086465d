"""Learners over any arms, and the baselines: UCB1, random, LinUCB, DraftAll."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.arms import Arm
from ..arms import TOGETHER, make_arms, one, positive
from ..contextual import ContextPolicy
from ..learners.linucb import LinUCB
from ..learners.ucb import UCB1
from ..learners.uniform import Uniform
from .compose import Method, bandit, recorder, worth


def ucb1(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
    strength: float = 1.0,
    reward: str = "",
    per_query: bool = False,
) -> Method:
    """UCB1 over drafters, lengths, stop rules or products of them (Auer, Cesa-Bianchi and Fischer 2002).

    `reward` left empty is `block-efficiency` among drafters, and `rate` (tokens per second) where arms differ
    in length or stop rule.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    reward = worth(reward, chosen, "block-efficiency")
    return bandit(chosen, lambda n: UCB1(n, strength=strength), reward=reward, per_query=per_query)


def uniform(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
) -> Method:
    """A uniformly random arm every round: the baseline that learning must beat."""
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, Uniform, reward="block-efficiency", per_query=False)


def linucb(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
    strength: float = 0.5,
    reward: str = "",
) -> Method:
    """LinUCB on match lengths, position, last accepted and last entropy (Li et al. 2010).

    What TapOut and MetaSD name as future work. `reward` left empty is that of `ucb1`.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    reward = worth(reward, chosen, "block-efficiency")
    hinted = tuple(dict.fromkeys(arm.drafter for arm in chosen if arm.length))
    learner = LinUCB(len(chosen), ContextPolicy.dimensions(len(hinted)), strength=strength)
    return Method(ContextPolicy(chosen, hinted, learner), recorder(chosen, reward))


def draft_all(drafters: Sequence[str], *, length: int = 5) -> Method:
    """MetaSD's DraftAll: every drafter drafts, all drafts are verified as one tree (arXiv 2604.05417)."""
    real = [d for d in drafters if d != "none"] or [one(drafters, "")]
    arm = Arm(TOGETHER, positive(length), width=len(real))
    return bandit((arm,), Uniform, reward="block-efficiency", per_query=False)

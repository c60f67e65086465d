"""Learners over any arms, and the baselines: UCB1, random, LinUCB, DraftAll."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core.arms import Arm
from ..arms import TOGETHER, make_arms, one, positive
from ..bandit import ContextPolicy
from ..learners.fixed import Uniform
from ..learners.linucb import LinUCB
from ..learners.ucb import UCB1
from .compose import Method, bandit, recorder, worth
from .options import Arms, Length, Lengths, Only, PerQuery, Strength, Usual


def ucb1(
    drafters: Sequence[str],
    *,
    arms: Arms = "drafters",
    length: Length = 5,
    lengths: Lengths = "1,2,4,8",
    drafter: Only = "",
    strength: Strength = 1.0,
    reward: Usual = "",
    per_query: PerQuery = False,
) -> Method:
    """UCB1 chooses among drafters, lengths, stop rules or products of them.

    The default reward is `block-efficiency` among drafters, and `rate` (tokens per second) where arms differ
    in length or stop rule.

    Source: Auer, Cesa-Bianchi and Fischer 2002 (doi 10.1023/A:1013689704352).
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    reward, learner = worth(reward, chosen, "block-efficiency"), partial(UCB1, strength=strength)
    return bandit(chosen, learner, reward=reward, per_query=per_query)


def uniform(
    drafters: Sequence[str],
    *,
    arms: Arms = "drafters",
    length: Length = 5,
    lengths: Lengths = "1,2,4,8",
    drafter: Only = "",
) -> Method:
    """A uniformly random arm in every round.

    Source: baseline.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, Uniform, reward="block-efficiency")


def linucb(
    drafters: Sequence[str],
    *,
    arms: Arms = "drafters",
    length: Length = 5,
    lengths: Lengths = "1,2,4,8",
    drafter: Only = "",
    strength: Strength = 0.5,
    reward: Usual = "",
) -> Method:
    """LinUCB chooses by context: match lengths, position, last accepted length and last entropy.

    TapOut and MetaSD name contextual bandits as future work. The default reward is that of `ucb1`.

    Source: Li et al. 2010 (arXiv 1003.0146).
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    reward = worth(reward, chosen, "block-efficiency")
    hinted = tuple(dict.fromkeys(arm.drafter for arm in chosen if arm.length))
    learner = LinUCB(len(chosen), ContextPolicy.dimensions(len(hinted)), strength=strength)
    return Method(ContextPolicy(chosen, hinted, learner), recorder(chosen, reward))


def draft_all(drafters: Sequence[str], *, length: Length = 5) -> Method:
    """Every drafter drafts in every round; all drafts are verified together as one tree.

    Source: MetaSD (arXiv 2604.05417), DraftAll.
    """
    real = [d for d in drafters if d != "none"] or [one(drafters, "")]
    arm = Arm(TOGETHER, positive(length), width=len(real))
    return bandit((arm,), Uniform, reward="block-efficiency")

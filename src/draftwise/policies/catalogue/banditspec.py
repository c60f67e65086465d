"""BanditSpec (arXiv 2505.15141): any configuration as arms, accepted length as the reward, per request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..arms import make_arms
from ..learners.exp3 import EXP3Spec
from ..learners.ucb import UCBSpec
from .compose import Method, bandit, worth
from .options import Arms, Length, Lengths, Only, PerQuery, Strength, Usual


def ucbspec(
    drafters: Sequence[str],
    *,
    arms: Arms = "drafters",
    length: Length = 5,
    lengths: Lengths = "0,1,2,3,4",
    drafter: Only = "",
    strength: Strength = 1.0,
    reward: Usual = "",
    per_query: PerQuery = True,
) -> Method:
    """UCBSpec chooses among drafters or lengths with the confidence radius of its paper.

    The radius explores almost uniformly at the length of one request; `strength` scales it down. The default
    reward is the paper's: `accepted` among drafters, `rate` (its throughput) among lengths.

    Source: BanditSpec (arXiv 2505.15141), section 4.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    learner = partial(UCBSpec, strength=strength)
    return bandit(chosen, learner, reward=worth(reward, chosen, "accepted"), per_query=per_query)


def exp3spec(
    drafters: Sequence[str],
    *,
    arms: Arms = "drafters",
    length: Length = 5,
    lengths: Lengths = "0,1,2,3,4",
    drafter: Only = "",
    reward: Usual = "",
    per_query: PerQuery = True,
) -> Method:
    """EXP3Spec chooses among drafters or lengths: anytime EXP3 on losses, for adversarial texts.

    The default reward is that of `ucbspec`.

    Source: BanditSpec (arXiv 2505.15141).
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, EXP3Spec, reward=worth(reward, chosen, "accepted"), per_query=per_query)

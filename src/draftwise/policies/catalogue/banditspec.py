"""BanditSpec (arXiv 2505.15141): any configuration as arms, accepted length as the reward, per query."""

from __future__ import annotations

from collections.abc import Sequence

from ..arms import make_arms
from ..learners.exp3spec import EXP3Spec
from ..learners.ucbspec import UCBSpec
from .compose import Method, bandit, worth


def ucbspec(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "0,1,2,3,4",
    drafter: str = "",
    strength: float = 1.0,
    reward: str = "",
    per_query: bool = True,
) -> Method:
    """BanditSpec's UCBSpec with its own confidence radius (arXiv 2505.15141, section 4).

    The radius explores almost evenly at the length of one request; `strength` scales it down. `reward` left
    empty is the paper's: `accepted` among drafters, `rate` (its throughput) among lengths.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    reward = worth(reward, chosen, "accepted")
    return bandit(chosen, lambda n: UCBSpec(n, strength=strength), reward=reward, per_query=per_query)


def exp3spec(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "0,1,2,3,4",
    drafter: str = "",
    reward: str = "",
    per_query: bool = True,
) -> Method:
    """BanditSpec's EXP3Spec: anytime EXP3 on losses, for any text at all (arXiv 2505.15141).

    `reward` left empty is that of `ucbspec`.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    reward = worth(reward, chosen, "accepted")
    return bandit(chosen, EXP3Spec, reward=reward, per_query=per_query)

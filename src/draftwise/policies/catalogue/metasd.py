"""MetaSD (arXiv 2604.05417): drafters as arms, block divergence as the reward, learnt anew for each query.

Every reward and scope of the paper is an option: `reward=block-efficiency`, `per_query=false`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..arms import make_arms
from ..learners.commit import ExploreThenCommit
from ..learners.ducb import DiscountedUCB
from ..learners.exp3 import EXP3
from ..learners.halving import SequentialHalving
from ..learners.swucb import SlidingWindowUCB
from ..learners.ucb import UCB1
from .compose import Method, bandit

LONGEST = 5  # N_max of the paper
REWARD = "block-divergence"


def metasd_ucb(
    drafters: Sequence[str],
    *,
    beta: float = 0.01,
    reward: str = REWARD,
    length: int = LONGEST,
    per_query: bool = True,
) -> Method:
    """MetaSD: UCB over drafters by block divergence, strength beta 0.01 as published (arXiv 2604.05417).

    No proof covers 0.01: Theorem 7 asks for beta above 1/2, Theorem 2's own proof takes 1/sqrt(N_max) = 0.45.
    `beta=1` is UCB1.
    """
    arms = make_arms(drafters, length=length)
    return bandit(arms, lambda n: UCB1(n, strength=beta), reward=reward, per_query=per_query)


def metasd_exp3(
    drafters: Sequence[str],
    *,
    gamma: float = 0.4,
    reward: str = REWARD,
    length: int = LONGEST,
    per_query: bool = True,
) -> Method:
    """MetaSD with EXP3, gamma 0.4 (arXiv 2604.05417, Algorithm 7)."""
    arms = make_arms(drafters, length=length)
    return bandit(arms, lambda n: EXP3(n, gamma=gamma), reward=reward, per_query=per_query)


def metasd_sh(
    drafters: Sequence[str],
    *,
    budget: int = 0,
    reward: str = REWARD,
    length: int = LONGEST,
    per_query: bool = True,
) -> Method:
    """MetaSD with sequential halving: the worse half of the drafters leaves (arXiv 2604.05417, Algorithm 5).

    `budget` 0 is one pull per surviving drafter between eliminations, the paper's "period 1".
    """
    arms = make_arms(drafters, length=length)
    return bandit(arms, lambda n: SequentialHalving(n, budget=budget), reward=reward, per_query=per_query)


def metasd_petc(
    drafters: Sequence[str],
    *,
    constant: float = 4.0,
    horizon: int = 256,
    reward: str = REWARD,
    length: int = LONGEST,
    per_query: bool = True,
) -> Method:
    """MetaSD's pure exploration, then commit: for drafters dear to switch (arXiv 2604.05417, Algorithm 4).

    It explores for `constant` * ln `horizon` rounds. The paper gives no constant.
    """
    arms = make_arms(drafters, length=length)

    def learner(n: int) -> ExploreThenCommit:
        return ExploreThenCommit(n, constant=constant, horizon=horizon)

    return bandit(arms, learner, reward=reward, per_query=per_query)


def metasd_ducb(
    drafters: Sequence[str],
    *,
    discount: float = 0.98,
    beta: float = 0.01,
    reward: str = REWARD,
    length: int = LONGEST,
    per_query: bool = True,
) -> Method:
    """MetaSD with discounted UCB: old rewards fade (arXiv 2604.05417, Algorithm 6; no discount is given)."""
    arms = make_arms(drafters, length=length)

    def learner(n: int) -> DiscountedUCB:
        return DiscountedUCB(n, discount=discount, strength=beta)

    return bandit(arms, learner, reward=reward, per_query=per_query)


def metasd_swucb(
    drafters: Sequence[str],
    *,
    window: int = 100,
    beta: float = 0.01,
    reward: str = REWARD,
    length: int = LONGEST,
    per_query: bool = True,
) -> Method:
    """MetaSD with sliding-window UCB: old rewards leave (arXiv 2604.05417, Algorithm 8; window not given)."""
    arms = make_arms(drafters, length=length)

    def learner(n: int) -> SlidingWindowUCB:
        return SlidingWindowUCB(n, window=window, strength=beta)

    return bandit(arms, learner, reward=reward, per_query=per_query)

"""MetaSD (arXiv 2604.05417): drafters as arms, block divergence as the reward, a new start for each request.

Every reward and scope of the paper is an option: `reward=block-efficiency`, `per_query=false`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from ...registry import Within
from ..arms import make_arms
from ..learners.exp3 import EXP3
from ..learners.halving import ExploreThenCommit, SequentialHalving
from ..learners.learner import Learner
from ..learners.ucb import UCB1, DiscountedUCB, SlidingWindowUCB
from .compose import Method, bandit
from .options import Length, PerQuery, Printed, Reward

LONGEST = 5  # N_max of the paper
REWARD = "block-divergence"
Beta = Annotated[float, "factor on the confidence radius; 1 is UCB1", Within(0.0)]


def metasd_ucb(
    drafters: Sequence[str],
    *,
    beta: Beta = 0.01,
    reward: Reward = REWARD,
    length: Length = LONGEST,
    per_query: PerQuery = True,
) -> Method:
    """UCB chooses the drafter of each round by block divergence.

    No proof covers the published beta of 0.01: Theorem 7 requires beta > 1/2, and the proof of Theorem 2 uses
    1/sqrt(N_max) = 0.45.

    Source: MetaSD (arXiv 2604.05417).
    """
    return _over(drafters, length, partial(UCB1, strength=beta), reward, per_query)


def metasd_exp3(
    drafters: Sequence[str],
    *,
    gamma: Annotated[float, "share of rounds played uniformly at random", Within(0.0, 1.0)] = 0.4,
    reward: Reward = REWARD,
    length: Length = LONGEST,
    per_query: PerQuery = True,
) -> Method:
    """EXP3 chooses the drafter of each round by block divergence.

    Source: MetaSD (arXiv 2604.05417), Algorithm 7.
    """
    return _over(drafters, length, partial(EXP3, gamma=gamma), reward, per_query)


def metasd_sh(
    drafters: Sequence[str],
    *,
    budget: Annotated[int, "total rounds; 0: one per remaining drafter between eliminations", Within(0)] = 0,
    reward: Reward = REWARD,
    length: Length = LONGEST,
    per_query: PerQuery = True,
) -> Method:
    """Sequential halving tries all drafters and drops the worse half, until one is left.

    Source: MetaSD (arXiv 2604.05417), Algorithm 5.
    """
    return _over(drafters, length, partial(SequentialHalving, budget=budget), reward, per_query)


def metasd_petc(
    drafters: Sequence[str],
    *,
    constant: Annotated[float, "factor on the length of the exploration", Within(0.0, 1e6)] = 4.0,
    horizon: Annotated[int, "rounds that a request is expected to take", Within(1)] = 256,
    reward: Reward = REWARD,
    length: Length = LONGEST,
    per_query: PerQuery = True,
) -> Method:
    """Explores the drafters in turn, then commits to the best: for drafters that are expensive to switch.

    It explores for `constant` * ln(`horizon`) rounds. The paper gives no constant.

    Source: MetaSD (arXiv 2604.05417), Algorithm 4.
    """
    learner = partial(ExploreThenCommit, constant=constant, horizon=horizon)
    return _over(drafters, length, learner, reward, per_query)


def metasd_ducb(
    drafters: Sequence[str],
    *,
    discount: Annotated[float, "factor on old rewards after each round", Within(0.0, 1.0)] = 0.98,
    beta: Beta = 0.01,
    reward: Reward = REWARD,
    length: Length = LONGEST,
    per_query: PerQuery = True,
    printed: Printed = False,
) -> Method:
    """Discounted UCB chooses the drafter of each round; old rewards lose weight.

    The paper gives no discount, and prints counts that are not discounted.

    Source: MetaSD (arXiv 2604.05417), Algorithm 6.
    """
    learner = partial(DiscountedUCB, discount=discount, strength=beta, printed=printed)
    return _over(drafters, length, learner, reward, per_query)


def metasd_swucb(
    drafters: Sequence[str],
    *,
    window: Annotated[int, "rewards that are remembered", Within(1)] = 100,
    beta: Beta = 0.01,
    reward: Reward = REWARD,
    length: Length = LONGEST,
    per_query: PerQuery = True,
    printed: Printed = False,
) -> Method:
    """Sliding-window UCB chooses the drafter of each round by its latest rewards.

    The paper gives no window, and prints the logarithm of all rounds.

    Source: MetaSD (arXiv 2604.05417), Algorithm 8.
    """
    learner = partial(SlidingWindowUCB, window=window, strength=beta, printed=printed)
    return _over(drafters, length, learner, reward, per_query)


def _over(
    drafters: Sequence[str], length: int, learner: Callable[[int], Learner], reward: str, per_query: bool
) -> Method:
    return bandit(make_arms(drafters, length=length), learner, reward=reward, per_query=per_query)

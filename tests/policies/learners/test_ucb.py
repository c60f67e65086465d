"""The UCB family: indices worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.ucb import UCB1, DiscountedUCB, SlidingWindowUCB, UCBSpec, UCBTuned

RNG = Random(0)


def teach(learner: Any, rounds: Sequence[tuple[int, float]]) -> Any:
    for arm, reward in rounds:
        learner.update(arm, reward, 1.0)
    return learner


@pytest.mark.parametrize("kind", [UCB1, UCBTuned, UCBSpec, DiscountedUCB, SlidingWindowUCB])
def test_untried_arms_come_first(kind: Any) -> None:
    learner = kind(4)
    order = []
    for _ in range(4):
        arm, _ = learner.choose(range(4), RNG)
        learner.update(arm, 1.0, 1.0)
        order.append(arm)
    assert order == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [UCB1, UCBTuned, UCBSpec, DiscountedUCB, SlidingWindowUCB])
def test_a_batch_is_spread_before_any_answer(kind: Any) -> None:
    learner = kind(3)
    batch = [learner.choose(range(3), RNG)[0] for _ in range(9)]
    assert [batch.count(arm) for arm in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("kind", [UCB1, UCBTuned, DiscountedUCB, SlidingWindowUCB])
def test_an_untried_arm_does_not_get_the_whole_batch(kind: Any) -> None:
    learner = teach(kind(3), [(0, 0.9), (1, 0.9)] * 4)
    batch = [learner.choose(range(3), RNG)[0] for _ in range(8)]
    assert batch[0] == 2
    assert batch.count(2) < 8
    assert {0, 1} & set(batch)


def test_a_greedy_strength_does_not_flood_an_arm_in_flight() -> None:
    learner = teach(UCB1(3, strength=0.01), [(0, 0.9), (1, 0.2)])
    # the arm in flight is rated 0.55, the mean over all, until its answer comes
    assert [learner.choose(range(3), RNG)[0] for _ in range(6)] == [2, 0, 0, 0, 0, 0]


def test_pulls_in_flight_shrink_the_bonus() -> None:
    learner = UCB1(2, pulls=[4.0, 4.0], sums=[2.0, 2.0])
    assert [learner.choose([0, 1], RNG)[0] for _ in range(4)] == [0, 1, 0, 1]


def test_tuned_bonus_shrinks_for_a_reward_that_never_varies() -> None:
    learner = teach(UCBTuned(2), [(0, 0.5), (1, 0.0), (0, 0.5), (1, 1.0)] * 100)
    # arm 0 always gave 1/2: V = sqrt(2 ln 400 / 200) = 0.2448; arm 1 gave 0 or 1: V = 0.25 + 0.24 > 1/4
    assert learner.bonus(0, 200, log(400)) == pytest.approx(0.08563173581190573, abs=1e-12)
    assert learner.bonus(1, 200, log(400)) == pytest.approx(0.08654091909, abs=1e-10)
    assert learner.choose([0, 1], RNG)[0] == 1


def test_tuned_bonus_of_an_arm_that_is_only_in_flight() -> None:
    # nothing is known of its variance: 1/4, so sqrt(ln 8 / 2 / 4)
    assert UCBTuned(2).bonus(0, 2, log(8)) == pytest.approx(0.5098334950844045, abs=1e-12)


def test_sliding_window_forgets_the_oldest() -> None:
    learner = teach(SlidingWindowUCB(2, window=3), [(0, 1.0), (0, 0.25), (1, 0.5), (1, 0.75)])
    assert learner.pulls == [1.0, 2.0]
    assert learner.estimates() == [0.25, 0.625]
    teach(learner, [(1, 0.0)])
    assert learner.pulls == [0.0, 3.0]
    assert learner.sums == [0.0, 1.25]
    assert learner.choose([0, 1], RNG)[0] == 0, "an arm that left the window is untried again"


def total_reward(learner: Any, seed: int) -> float:
    """The best arm changes at 500 of 1000 rounds: chances 0.8 and 0.3, then 0.1 and 0.6."""
    rng = Random(seed)
    won = 0.0
    for t in range(1000):
        arm, chance = learner.choose([0, 1], rng)
        reward = float(rng.random() < ((0.8, 0.3) if t < 500 else (0.1, 0.6))[arm])
        learner.update(arm, reward, chance)
        won += reward
    return won


def test_forgetting_wins_when_the_best_arm_changes() -> None:
    def mean(kind: Any, **options: float) -> float:
        return sum(total_reward(kind(2, **options), seed) for seed in range(10)) / 10

    plain = mean(UCB1, strength=0.5)
    assert mean(DiscountedUCB, strength=0.5) > plain + 20
    assert mean(SlidingWindowUCB, strength=0.5) > plain + 20

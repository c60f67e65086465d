"""Sequential halving, exploring then committing, and what switches cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.halving import ExploreThenCommit, SequentialHalving
from draftwise.policies.learners.ucb import UCB1

RNG = Random(0)


def play(learner: Any, means: Sequence[float], rounds: int, allowed: Sequence[int] = ()) -> list[int]:
    order = []
    for _ in range(rounds):
        arm, chance = learner.choose(allowed or range(len(means)), RNG)
        learner.update(arm, means[arm], chance)
        order.append(arm)
    return order


def test_one_pull_between_eliminations() -> None:
    learner = SequentialHalving(5)
    assert play(learner, [0.1, 0.2, 0.3, 0.4, 0.5], 12) == [0, 1, 2, 3, 4, 2, 3, 4, 3, 4, 4, 4]
    assert learner.survivors == [4]


@pytest.mark.parametrize(
    ("arms", "sizes"),
    [(2, [1]), (3, [2, 1]), (4, [2, 1]), (5, [3, 2, 1]), (6, [3, 2, 1]), (7, [4, 2, 1]), (8, [4, 2, 1])],
)
def test_the_rounded_up_logarithm_leaves_one(arms: int, sizes: list[int]) -> None:
    learner = SequentialHalving(arms)
    seen = [arms]
    for _ in range(40):
        play(learner, [i / 10 for i in range(arms)], 1)
        if len(learner.survivors) != seen[-1]:
            seen.append(len(learner.survivors))
    assert seen[1:] == sizes
    assert learner.survivors == [arms - 1], "the half with the higher mean stays"


def test_a_budget_is_shared_by_the_phases() -> None:
    # T = 30, K = 5, three phases: 30 // 15 = 2 each, then 30 // 9 = 3, then 30 // 6 = 5
    order = play(SequentialHalving(5, budget=30), [0.5, 0.4, 0.3, 0.2, 0.1], 40)
    assert [order[:10].count(a) for a in range(5)] == [2, 2, 2, 2, 2]
    assert [order[10:19].count(a) for a in range(5)] == [3, 3, 3, 0, 0]
    assert [order[19:29].count(a) for a in range(5)] == [5, 5, 0, 0, 0]
    assert set(order[29:]) == {0}


def test_two_arms_have_one_phase() -> None:
    order = play(SequentialHalving(2, budget=10), [0.5, 0.6], 14)
    assert order == [0, 1] * 5 + [1] * 4


def test_estimates_are_mean_rewards() -> None:
    learner = SequentialHalving(3)
    for arm, won in [(0, 1.0), (0, 0.5), (1, 0.25)]:
        learner.update(arm, won, 1.0)
    assert learner.estimates() == [0.75, 0.25, 0.0]


def test_a_batch_waits_for_its_answers_before_eliminating() -> None:
    learner = SequentialHalving(4)
    batch = [learner.choose(range(4), RNG)[0] for _ in range(8)]
    assert batch == [0, 1, 2, 3, 0, 1, 2, 3]
    assert learner.survivors == [0, 1, 2, 3]
    for arm in batch[:4]:
        learner.update(arm, arm / 4, 1.0)
    assert learner.choose(range(4), RNG)[0] in (2, 3)


def test_an_arm_out_of_use_does_not_hold_up_a_phase() -> None:
    learner = SequentialHalving(4)
    assert play(learner, [0.1, 0.9, 0.3, 0.5], 3, allowed=[0, 2, 3]) == [0, 2, 3]
    # arm 1 was never seen and is dropped with arm 0; of 2 and 3 the better stays
    assert play(learner, [0.1, 0.9, 0.3, 0.5], 4, allowed=[0, 2, 3]) == [2, 3, 3, 3]
    assert learner.choose([0, 2], RNG)[0] == 2, "the best allowed arm when no survivor is"


def test_committing_plays_arm_by_arm() -> None:
    # B = 256, c = 4: 23 rounds; 23 // 8 = 2 each of four, then 23 // 4 = 5 each of two
    order = play(ExploreThenCommit(4), [0.1, 0.2, 0.4, 0.3], 24)
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]


def test_committing_counts_a_batch_in_flight() -> None:
    learner = ExploreThenCommit(4)
    assert [learner.choose(range(4), RNG)[0] for _ in range(10)] == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]


def test_committing_takes_the_best_when_the_budget_is_spent() -> None:
    learner = ExploreThenCommit(4, budget=5)
    assert play(learner, [0.1, 0.9, 0.4, 0.3], 8) == [0, 1, 2, 3, 1, 1, 1, 1]


def test_committing_switches_least() -> None:
    def switches(learner: Any) -> int:
        order = play(learner, [0.3, 0.5, 0.4, 0.2], 300)
        return sum(a != b for a, b in pairwise(order))

    # 0, 1, 2, 3, then 1 and 2, then 1 for good
    assert switches(ExploreThenCommit(4)) == 6
    assert switches(SequentialHalving(4, budget=23)) > 12
    assert switches(UCB1(4)) > 12

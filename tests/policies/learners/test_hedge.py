"""Learners with full information: weights by hand, and NormalHedge's c by its defining equation."""

from __future__ import annotations

from math import e, exp, log
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.hedge import Hedge, NormalHedge, solve_scale

EXPERTS: list[Any] = [Hedge, NormalHedge]


def test_hedge_after_one_round() -> None:
    learner = Hedge(2)
    learner.learn_all([0.0, 1.0])
    # eta = sqrt(8 ln 2 / 2) = 1.66511
    assert learner.estimates()[0] == pytest.approx(0.84092266368867053, abs=1e-12)


def test_hedge_with_a_rate_of_its_own() -> None:
    learner = Hedge(2, rate=0.5)
    learner.learn_all([0.0, 1.0])
    assert learner.estimates()[0] == pytest.approx(0.62245933120185456, abs=1e-12)


def test_hedge_forgets() -> None:
    learner = Hedge(2, memory=0.5)
    learner.learn_all([0.0, 1.0])
    learner.learn_all([1.0, 0.0])
    assert (learner.losses, learner.rounds) == ([1.0, 0.5], 1.5)


def test_normalhedge_with_one_good_arm_of_two() -> None:
    learner = NormalHedge(2)
    learner.learn_all([0.0, 1.0])
    assert learner.regrets == [0.5, -0.5]
    # (exp(1/8 / c) + 1) / 2 = e
    assert learner.scale == pytest.approx(0.083899367370851992, abs=1e-12)
    assert learner.weights == [1.0, 0.0]
    learner.learn_all([1.0, 0.0])
    # all the weight was on arm 0, so the learner lost 1: the regrets are level, exp(1/8 / c) = e
    assert learner.regrets == [0.5, 0.5]
    assert learner.scale == pytest.approx(0.125, abs=1e-12)
    assert learner.weights == [0.5, 0.5]


def test_normalhedge_weights_of_three() -> None:
    learner = NormalHedge(3, regrets=[1.0, 0.5, -1.0])
    learner.learn_all([0.0, 0.0, 0.0])
    assert learner.scale == pytest.approx(0.28976702860843428, abs=1e-12)
    assert learner.weights == pytest.approx([0.87945616699372695, 0.12054383300627305, 0.0], abs=1e-12)


def test_normalhedge_compares_with_the_arms_awake_when_all_its_weight_sleeps() -> None:
    learner = NormalHedge(3, regrets=[0.0, 0.0, 0.0], weights=[1.0, 0.0, 0.0])
    learner.learn_all([None, 0.2, 0.6])
    # the mean loss of those awake is 0.4
    assert learner.regrets == pytest.approx([0.0, 0.2, -0.2])


def test_normalhedge_starts_uniform() -> None:
    assert NormalHedge(4).choose(range(4), Random(0))[1] == 0.25
    assert NormalHedge(4).estimates() == [0.25, 0.25, 0.25, 0.25]


def test_normalhedge_is_uniform_while_nothing_is_regretted() -> None:
    learner = NormalHedge(4)
    learner.learn_all([0.5, 0.5, 0.5, 0.5])
    assert learner.weights == [0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e4])
def test_normalhedge_scale_solves_its_equation_in_few_steps(n: int, size: float) -> None:
    rng = Random(n)
    for _ in range(50):
        regrets = [size * rng.uniform(-1.0, 1.0) for _ in range(n - 1)] + [size * rng.random()]
        c, steps = solve_scale(regrets)
        mean = sum(exp(max(r, 0.0) ** 2 / (2 * c)) for r in regrets) / n
        assert mean == pytest.approx(e, abs=1e-9)
        assert steps <= 8
        top = max(regrets) ** 2 / 2
        assert top / (1 + log(n)) <= c * (1 + 1e-9) and c <= top * (1 + 1e-9)


def test_normalhedge_scale_needs_fewer_steps_from_the_last_one() -> None:
    rng = Random(1)
    learner = NormalHedge(16)
    cold = warm = 0
    for _ in range(200):
        before = learner.scale
        learner.learn_all([rng.random() * (1 - i / 32) for i in range(16)])
        if max(learner.regrets) > 0.0:
            cold += solve_scale(learner.regrets)[1]
            warm += solve_scale(learner.regrets, start=before)[1]
    assert warm < 0.75 * cold


def test_normalhedge_bears_regrets_too_small_to_square() -> None:
    learner = NormalHedge(3, memory=0.5)
    learner.learn_all([0.0, 1.0, 1.0])
    for _ in range(1200):
        learner.learn_all([0.0, 0.0, 0.0])
    assert sum(learner.weights) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", EXPERTS)
def test_sleeping_is_neither_praised_nor_blamed(kind: Any) -> None:
    learner = kind(3)
    for _ in range(50):
        learner.learn_all([0.5, 0.4, 0.6])
    before = learner.estimates()
    for _ in range(10):
        learner.learn_all([None, None, None])
    after = learner.estimates()
    assert sorted(range(3), key=before.__getitem__) == sorted(range(3), key=after.__getitem__)
    learner.learn_all([0.5, None, 0.5])
    assert learner.estimates()[1] == max(learner.estimates())


@pytest.mark.parametrize("kind", EXPERTS)
def test_the_best_of_many_is_found(kind: Any) -> None:
    learner, rng = kind(8), Random(2)
    for _ in range(400):
        learner.learn_all([rng.random() * (0.7 if i == 5 else 1.0) for i in range(8)])
    assert max(range(8), key=learner.estimates().__getitem__) == 5
    played = [learner.choose(range(8), rng)[0] for _ in range(100)]
    assert played.count(5) > 60


@pytest.mark.parametrize("kind", EXPERTS)
def test_forgetting_follows_a_change(kind: Any) -> None:
    steady, forgetful = kind(2), kind(2, memory=0.95)
    for learner in (steady, forgetful):
        for t in range(260):
            learner.learn_all([0.2, 0.8] if t < 200 else [0.8, 0.2])
    assert forgetful.estimates()[1] > 0.75
    assert steady.estimates()[1] < 0.5


@pytest.mark.parametrize("kind", [Hedge, NormalHedge])
def test_propensities_are_the_frequencies(kind: Any) -> None:
    learner, rng = kind(4), Random(3)
    for losses in ([0.1, 0.5, 0.2, 0.9], [0.4, 0.3, 0.2, 0.5]):
        learner.learn_all(losses)
    for allowed in ([0, 1, 2, 3], [1, 3], [2]):
        chances, seen = dict.fromkeys(allowed, 0.0), dict.fromkeys(allowed, 0)
        for _ in range(8000):
            arm, chance = learner.choose(allowed, rng)
            chances[arm] = chance
            seen[arm] += 1
        assert sum(chances.values()) == pytest.approx(1.0, abs=1e-12)
        assert [seen[a] / 8000 for a in allowed] == pytest.approx(list(chances.values()), abs=0.025)

"""EXP3 and EXP3Spec: probabilities by hand, importance weights by exact enumeration."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.exp3 import EXP3, EXP3Spec


def test_exp3_never_leaves_an_arm_out() -> None:
    learner = EXP3(4, logs=[5000.0, 0.0, -5000.0, 0.0])
    assert learner.chances(range(4)) == pytest.approx([0.7, 0.1, 0.1, 0.1])


def test_exp3_on_fewer_arms_mixes_over_those() -> None:
    learner = EXP3(4, logs=[9.0, 0.0, 0.0, 0.0])
    assert learner.chances([1, 3]) == pytest.approx([0.5, 0.5])


def test_exp3_keeps_an_arm_that_was_out_of_favour_for_long() -> None:
    learner = EXP3(2)
    for _ in range(10_000):
        learner.update(0, 1.0, 0.8)
    for _ in range(10_100):
        learner.update(1, 1.0, 0.8)
    assert learner.chances([0, 1])[1] == pytest.approx(0.8, abs=1e-6)


def test_exp3spec_counts_rounds_in_flight() -> None:
    answered, waiting = EXP3Spec(2, losses=[1.0, 0.0], rounds=8), EXP3Spec(2, losses=[1.0, 0.0], rounds=5)
    for _ in range(3):
        waiting.choose([0, 1], Random(0))
    assert waiting.chances([0, 1]) == answered.chances([0, 1])
    waiting.abort(0)
    assert waiting.chances([0, 1]) != answered.chances([0, 1])


def test_exp3spec_survives_a_vast_loss() -> None:
    learner = EXP3Spec(3)
    learner.update(0, 0.0, 1e-200)
    assert learner.chances(range(3)) == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("kind", [EXP3, EXP3Spec])
def test_propensities_sum_to_one_and_are_the_frequencies(kind: Any) -> None:
    learner, rng = kind(4), Random(3)
    for arm, reward in [(0, 0.3), (1, 0.9), (2, 0.1), (1, 1.0), (3, 0.5)]:
        learner.update(arm, reward, 0.25)
    for allowed in ([0, 1, 2, 3], [0, 2], [3]):
        chances = learner.chances(allowed)
        assert sum(chances) == pytest.approx(1.0, abs=1e-12)
        seen = dict.fromkeys(allowed, 0)
        for _ in range(8000):
            arm, chance = learner.choose(allowed, rng)
            learner.abort(arm)
            assert chance == pytest.approx(chances[allowed.index(arm)])
            seen[arm] += 1
        assert [seen[arm] / 8000 for arm in allowed] == pytest.approx(chances, abs=0.025)


REWARDS = ((0.2, 0.9, 0.5), (0.7, 0.1, 0.4))
"""Of three arms in two rounds."""


def test_exp3_importance_weights_are_unbiased() -> None:
    learner = EXP3(3, logs=[0.5, 0.0, -1.0])
    for arm, p in enumerate(learner.chances(range(3))):
        trial = EXP3(3, logs=[0.5, 0.0, -1.0])
        trial.update(arm, REWARDS[0][arm], p)
        # chance * step = gamma * reward / K, whatever the chance was
        assert p * (trial.logs[arm] - learner.logs[arm]) == pytest.approx(0.4 * REWARDS[0][arm] / 3)


def delayed_mean(*, stale: bool) -> list[float]:
    """The expected losses held by EXP3Spec after two rounds that were both chosen before any answer.

    All nine pairs of choices are summed. `stale` weights the second by the chance of its own day, as
    the learner is told to; else by the weights at the time the answer comes.
    """
    mean = [0.0, 0.0, 0.0]
    start = [0.6, 0.0, 0.2]
    day = EXP3Spec(3, losses=list(start), rounds=4).chances(range(3))
    for first, second in product(range(3), repeat=2):
        learner = EXP3Spec(3, losses=list(start), rounds=4)
        learner.update(first, REWARDS[0][first], day[first])
        late = day[second] if stale else learner.chances(range(3))[second]
        learner.update(second, REWARDS[1][second], late)
        for arm in range(3):
            mean[arm] += day[first] * day[second] * (learner.losses[arm] - start[arm])
    return mean


def test_late_answers_are_unbiased_by_the_chance_of_their_day() -> None:
    # losses 1 - r, summed over both rounds: 0.8 + 0.3, 0.1 + 0.9, 0.5 + 0.6
    assert delayed_mean(stale=True) == pytest.approx([1.1, 1.0, 1.1], abs=1e-12)
    assert max(abs(a - b) for a, b in zip(delayed_mean(stale=False), [1.1, 1.0, 1.1], strict=True)) > 0.05

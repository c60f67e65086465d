"""Thompson sampling: posteriors by hand, and choices as often as the exact distribution says."""

from __future__ import annotations

from math import isnan, sqrt
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.thompson import GaussianThompson

DRAWS = 20_000


def first_share(learner: Any) -> float:
    rng = Random(5)
    return [learner.choose([0, 1], rng)[0] for _ in range(DRAWS)].count(0) / DRAWS


def tolerance(p: float) -> float:
    return 4 * sqrt(p * (1 - p) / DRAWS)


def test_gaussian_posterior() -> None:
    learner = GaussianThompson(2)
    learner.update(0, 1.0, 1.0)
    # prior precision 4 at 0.5, one reward of precision 4 at 1
    assert (learner.precisions[0], learner.means[0]) == (8.0, 0.75)
    learner.update(0, 0.0, 1.0)
    assert learner.precisions[0] == 12.0
    assert learner.means[0] == pytest.approx(0.5, abs=1e-15)
    assert learner.estimates()[1] == 0.5


def test_gaussian_options() -> None:
    learner = GaussianThompson(1, mean=0.0, variance=1.0, noise=0.5)
    learner.update(0, 0.9, 1.0)
    assert learner.precisions == [3.0]
    assert learner.means == pytest.approx([0.6])


def test_gaussian_choices_follow_the_posterior() -> None:
    learner = GaussianThompson(2, means=[0.75, 0.5], precisions=[8.0, 4.0])
    # P(N(3/4, 1/8) > N(1/2, 1/4)) = Phi(0.25 / sqrt(0.375))
    assert first_share(learner) == pytest.approx(0.6584543008, abs=tolerance(0.658))


def test_the_chance_of_an_arm_is_said_to_be_unknown() -> None:
    assert isnan(GaussianThompson(3).choose(range(3), Random(0))[1])


def test_a_batch_is_spread_before_any_answer() -> None:
    learner, rng = GaussianThompson(3), Random(0)
    assert {learner.choose(range(3), rng)[0] for _ in range(30)} == {0, 1, 2}

"""Thompson sampling: posteriors by hand, and choices as often as the exact distribution says."""

from __future__ import annotations

from math import exp, isnan, log, sqrt
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.beta import _SQUEEZE, BetaThompson, _accept, _shape
from draftwise.policies.learners.gaussian import GaussianThompson

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


def test_beta_counts_successes_and_failures() -> None:
    learner = BetaThompson(2)
    learner.update(0, 1.0, 1.0)
    learner.update(0, 0.25, 1.0)
    assert (learner.successes, learner.failures) == ([2.25, 1.0], [1.75, 1.0])
    assert learner.estimates() == [0.5625, 0.5]


@pytest.mark.parametrize(
    ("ab", "cd", "exact"),
    [
        ((3, 2), (2, 2), 22 / 35),
        ((2, 5), (3, 3), 13 / 66),
        ((20, 4), (30, 9), 807046333 / 1078674285),
        ((1, 1), (2, 3), 3 / 5),
        ((4, 1), (3, 2), 11 / 14),
    ],
)
def test_beta_choices_follow_the_posterior(ab: tuple[int, int], cd: tuple[int, int], exact: float) -> None:
    """P(Beta(a, b) > Beta(c, d)) for whole numbers is a fraction, summed by hand."""
    learner = BetaThompson(2, successes=[float(ab[0]), float(cd[0])], failures=[float(ab[1]), float(cd[1])])
    assert first_share(learner) == pytest.approx(exact, abs=tolerance(exact))


def test_beta_update_changes_the_law_it_draws_from() -> None:
    learner = BetaThompson(2, successes=[2.0, 2.0], failures=[2.0, 2.0])
    learner.update(0, 1.0, 1.0)
    assert first_share(learner) == pytest.approx(22 / 35, abs=tolerance(0.63))


@pytest.mark.parametrize("kind", [GaussianThompson, BetaThompson])
def test_the_chance_of_an_arm_is_said_to_be_unknown(kind: Any) -> None:
    assert isnan(kind(3).choose(range(3), Random(0))[1])


@pytest.mark.parametrize("kind", [GaussianThompson, BetaThompson])
def test_a_batch_is_spread_before_any_answer(kind: Any) -> None:
    learner, rng = kind(3), Random(0)
    assert {learner.choose(range(3), rng)[0] for _ in range(30)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("a", "b", "tails"),
    [
        (3.0, 2.0, {0.25: 0.94921875, 0.5: 0.6875, 0.8: 0.1808}),
        (2.0, 9.0, {0.05: 0.9138616441006836, 0.2: 0.3758096384, 0.4: 0.0463574016}),
        (30.0, 12.0, {0.6: 0.9433413126958234, 0.7: 0.59895220965039, 0.8: 0.10215801833712837}),
    ],
)
def test_beta_draws_have_the_exact_tails(a: float, b: float, tails: dict[float, float]) -> None:
    """P(Beta(a, b) > t) = P(Binomial(a + b - 1, t) < a), against an arm that is all but sure of t."""
    for t, exact in tails.items():
        learner = BetaThompson(2, successes=[a, 1e9 * t], failures=[b, 1e9 * (1 - t)])
        rng = Random(9)
        above = [learner.choose([0, 1], rng)[0] for _ in range(60_000)].count(0) / 60_000
        assert above == pytest.approx(exact, abs=4 * sqrt(exact * (1 - exact) / 60_000)), t


@pytest.mark.parametrize(("a", "b"), [(1.01, 1.01), (1.5, 40.0), (3.0, 2.0), (30.0, 12.0), (900.0, 1100.0)])
def test_the_envelope_of_the_beta_draws_holds(a: float, b: float) -> None:
    """Cheng's BB is exact if its acceptance chance stays below 1 and its short cut never errs."""
    slope, rise, low, high, total, _ = _shape(a, b)
    nearest = 0.0
    for i in range(1, 2000):
        u = i / 2000
        logit = log(u / (1 - u))
        w, r = low * exp(slope * logit), rise * logit
        # accepted if z = u^2 u2 is below this, for a uniform u2
        limit = exp(r - log(4) + total * log(total / (high + w)))
        assert limit <= u * u * (1 + 1e-9)
        nearest = max(nearest, limit / (u * u))
        for z in (0.999 * limit, 1.001 * limit):
            assert _accept(r, w, z, total, high) == (z < limit)
            assert not low + r - w + _SQUEEZE >= 5 * z or z < limit
    assert nearest > 0.99, "and it wastes nothing"

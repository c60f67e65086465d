"""Stop rules and lengths that learn: five rounds by hand, and the refit against scikit-learn's."""

from __future__ import annotations

from random import Random

import pytest

from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Outcome
from draftwise.policies.adaptive import AdaEDL, ConfidenceRefit, HeuristicLength
from draftwise.state.learned import fresh

ROUNDS = [(4, 4), (3, 3), (4, 2), (4, 0), (4, 4)]
"""Drafted and accepted, of at most 4."""


def lambdas(rule: AdaEDL) -> list[float]:
    after = []
    for drafted, accepted in ROUNDS:
        rule.learn(Outcome(0, accepted, drafted), 4)
        after.append(rule.threshold)
    return after


def test_adaedl_lambda_after_five_rounds() -> None:
    rule = AdaEDL()
    # AR: 0.95, 0.975, 0.7375, 0.36875, 0.684375; so: full, less, more, more, more, a thousandth each
    assert lambdas(rule) == pytest.approx([0.6, 0.599, 0.6, 0.601, 0.602], abs=1e-12)
    assert rule.rate == pytest.approx(0.684375, abs=1e-12)


def test_adaedl_as_tapout_prints_it() -> None:
    # the round's own rate: 1, 1, 0.5, 0, 1 against 0.9
    assert lambdas(AdaEDL(form="tapout")) == pytest.approx([0.599, 0.598, 0.599, 0.6, 0.599], abs=1e-12)


def test_adaedl_learns_nothing_from_an_empty_draft() -> None:
    rule = AdaEDL()
    rule.learn(Outcome(0, 0, 0), 4)
    assert rule == AdaEDL()


def test_heuristic_length() -> None:
    rule = HeuristicLength(5)
    lengths = []
    for drafted, accepted in [(5, 5), (7, 3), (6, 0), (2, 2), (0, 0), (7, 6)]:
        rule.learn(Outcome(0, accepted, drafted))
        lengths.append(rule.length)
    assert lengths == [7, 6, 5, 7, 7, 6]
    assert fresh(rule).length == 5, "the transient schedule starts each text again"


def test_heuristic_length_never_goes_below_one() -> None:
    rule = HeuristicLength(2)
    for _ in range(4):
        rule.learn(Outcome(0, 0, rule.length))
    assert rule.length == 1


def tell(rule: ConfidenceRefit, chosen: list[float], accepted: int) -> None:
    """A round with these probabilities of its tokens."""
    signals = tuple(Signals(p, 0.0, 0.0, p) for p in chosen)
    rule.learn(Outcome(0, accepted, len(chosen), signals=signals), len(chosen))


def test_refit_waits_for_enough_of_both_kinds() -> None:
    rule = ConfidenceRefit()
    tell(rule, [0.9, 0.8, 0.7], 3)
    tell(rule, [0.6, 0.5, 0.95], 3)
    assert rule.threshold == 0.4, "six pairs, but no miss among them"
    few = ConfidenceRefit()
    tell(few, [0.9, 0.2, 0.8, 0.7, 0.6], 4)
    assert few.threshold == 0.4, "both kinds, but five pairs"


def test_refit_takes_the_cheapest_point() -> None:
    rule = ConfidenceRefit()
    tell(rule, [0.9, 0.8, 0.3, 0.1, 0.05], 2)  # 0.3 was wrong; 0.1 and 0.05 were never tested
    tell(rule, [0.7, 0.5, 0.2], 2)
    # hits 0.9 0.8 0.7 0.5, misses 0.3 0.2: at 0.5 every hit and no miss
    assert rule.threshold == 0.5
    tell(rule, [0.1], 1)
    # below 0.5 a fifth hit at 0.1 costs both misses (1); without it the cost is 3/5
    assert rule.threshold == 0.5
    tell(rule, [0.15, 0.12], 2)
    # hits 0.9 0.8 0.7 0.5 0.15 0.12 0.1: at 0.5 the cost is 3 * 3/7, at 0.1 it is 1
    assert rule.threshold == 0.1


@pytest.mark.parametrize("steps", [4, 10, 100, 10**9])
def test_refit_chooses_as_scikit_learn_does(steps: int) -> None:
    """Coarse probabilities make ties between points, fine ones make none."""
    metrics = pytest.importorskip("sklearn.metrics")
    compared = 0
    for seed in range(8):
        rng, rule = Random(seed), ConfidenceRefit()
        probs: list[float] = []
        matches: list[int] = []
        for _ in range(25):
            chosen = [rng.randrange(1, steps + 1) / steps for _ in range(rng.randrange(7))]
            accepted = 0
            while accepted < len(chosen) and rng.random() < max(0.3, chosen[accepted]):
                accepted += 1
            tested = chosen[: accepted + 1]
            probs += tested
            matches += [1] * accepted + [0] * (len(tested) - accepted)
            tell(rule, chosen, accepted)
            if len(probs) > 5 and 0 in matches and 1 in matches:
                fpr, tpr, thresholds = metrics.roc_curve(matches, probs)
                costs = fpr + 3 * (1 - tpr)
                assert rule.threshold == thresholds[costs.argmin()]
                compared += 1
    assert compared > 100

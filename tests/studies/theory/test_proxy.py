"""Regret in rewards ranks policies the opposite way of regret in rounds (MetaSD, Lemma 9)."""

from __future__ import annotations

from random import Random

import pytest

from studies.theory.proxy import (
    BEST,
    EARLY,
    LATE,
    OVERLAPS,
    chunks,
    divergence,
    learn,
    length,
    mean_rounds,
    regrets,
    simulated,
)


def test_the_enumerated_rounds_are_those_of_the_formula() -> None:
    """E[L] = 1 + sum over k of the product of the first k overlaps, which are constants here."""
    for name, overlaps in OVERLAPS.items():
        survival, mean = 1.0, 1.0
        for overlap in overlaps:
            survival *= overlap
            mean += survival
        assert length(name) == pytest.approx(mean, abs=1e-12)
        assert chunks(name).sum() == pytest.approx(1.0, abs=1e-12)
        assert chunks(name)[6] == pytest.approx(survival, abs=1e-12)


def test_mean_rounds_by_hand() -> None:
    """A text of two tokens takes a second round if the first draft token is rejected."""
    assert mean_rounds(BEST, 0, 1) == 1.0
    assert mean_rounds(BEST, 0, 2) == pytest.approx(1.05)
    assert mean_rounds(LATE, 1, 2) == pytest.approx(1.5)
    # three tokens: 0.05 leave two of them to the best drafter, 0.95 * 0.1 leave one
    assert mean_rounds(EARLY, 1, 3) == pytest.approx(1.0 + 0.05 * 1.05 + 0.095)


def test_the_best_drafter_is_the_same_by_both_measures() -> None:
    assert max(OVERLAPS, key=divergence) == max(OVERLAPS, key=length) == BEST


@pytest.mark.parametrize("first", [1, 5, 20])
def test_of_two_policies_the_one_with_less_reward_regret_takes_more_rounds(first: int) -> None:
    late, early = regrets(LATE, first, 200), regrets(EARLY, first, 200)
    assert late[0] < 0.6 * early[0]
    assert late[1] > 1.4 * early[1]


def test_a_learner_without_reward_regret_falls_behind_in_rounds() -> None:
    marks = [500, 4000]
    found = simulated(marks, 6)
    by_divergence, by_efficiency = found["divergence"], found["efficiency"]
    assert by_divergence[0][1] < by_efficiency[0][1] / 3
    assert by_divergence[1][1] > by_efficiency[1][1] * 3
    # eight times the text: about eight times the rounds for the one, far less for the other
    assert by_divergence[1][1] > 6.0 * by_divergence[1][0]
    assert by_efficiency[1][1] < 5.0 * by_efficiency[1][0]


def test_the_best_drafter_alone_has_no_regret_by_either() -> None:
    earned, lost = learn("divergence", [2000], (BEST,), rng=Random(1))
    assert earned[0] == pytest.approx(0.0, abs=1e-9)
    assert abs(lost[0]) < 15.0

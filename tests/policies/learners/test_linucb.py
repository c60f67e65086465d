"""LinUCB: a ridge regression worked out by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.linucb import LinUCB

RNG = Random(0)


def test_two_updates_by_hand() -> None:
    learner = LinUCB(2, 2)
    learner.update(0, 1.0, 1.0, [1.0, 0.0])
    assert learner.thetas[0] == pytest.approx([0.5, 0.0])
    learner.update(0, 0.0, 1.0, [1.0, 1.0])
    # A = [[3, 1], [1, 2]], b = (1, 0)
    assert learner.inverses[0] == pytest.approx([0.4, -0.2, -0.2, 0.6])
    assert learner.thetas[0] == pytest.approx([0.4, -0.2])
    assert learner.thetas[1] == [0.0, 0.0]
    assert learner.estimates() == pytest.approx([0.4, 0.0])


def test_the_index_is_guess_plus_strength_times_width() -> None:
    state: dict[str, Any] = {
        "thetas": [[0.4, -0.2], [0.0, 0.0]],
        "inverses": [[0.4, -0.2, -0.2, 0.6], [1.0, 0.0, 0.0, 1.0]],
    }
    # at (1, 2): arm 0 guesses 0 with x' A^-1 x = 2, arm 1 guesses 0 with 5
    assert LinUCB(2, 2, **state).choose([0, 1], RNG, [1.0, 2.0]) == (1, 1.0)
    # at (1, 0): 0.4 + s sqrt(0.4) against 0 + s: arm 1 from s = 1.0883
    assert LinUCB(2, 2, strength=1.08, **state).choose([0, 1], RNG, [1.0, 0.0])[0] == 0
    assert LinUCB(2, 2, strength=1.10, **state).choose([0, 1], RNG, [1.0, 0.0])[0] == 1


def test_decisions_in_flight_shrink_the_width() -> None:
    # v = 1 falls to 1 / (1 + 3): arm 0 is worth 0.6 + 0.5 * 1/2 with three in flight, arm 1 x + 0.5
    def chosen(other: float) -> int:
        learner = LinUCB(2, 1, thetas=[[0.6], [other]], flight=[3, 0])
        return learner.choose([0, 1], RNG, [1.0])[0]

    assert chosen(0.34) == 0
    assert chosen(0.36) == 1


def test_ridge_is_the_first_diagonal() -> None:
    assert LinUCB(1, 2, ridge=4.0).inverses == [[0.25, 0.0, 0.0, 0.25]]


def test_it_learns_which_arm_is_best_where() -> None:
    learner, rng = LinUCB(2, 2), Random(4)
    for _ in range(400):
        x = rng.random()
        arm, chance = learner.choose([0, 1], rng, [1.0, x])
        learner.update(arm, float(rng.random() < (x if arm else 1 - x)), chance, [1.0, x])
    assert learner.choose([0, 1], rng, [1.0, 0.1])[0] == 0
    assert learner.choose([0, 1], rng, [1.0, 0.9])[0] == 1

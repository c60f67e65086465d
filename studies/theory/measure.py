"""Regret of learners on simulated texts, and fits of its growth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftwise.measure.simulate import Acceptance, SimArm, Text, play

Vector = NDArray[np.float64]
Makers = dict[str, Callable[[int], Any]]

SHAPES: Mapping[str, Callable[[Vector], Vector]] = {
    "log": lambda x: np.log(x),
    "sqrt": lambda x: np.sqrt(x),
    "linear": lambda x: x,
}


def doublings(first: int, last: int) -> list[int]:
    """2^first, ..., 2^last."""
    return [2**k for k in range(first, last + 1)]


def regrets(
    makers: Makers,
    acceptance: Acceptance,
    arms: Sequence[SimArm],
    marks: Sequence[int],
    *,
    seeds: Sequence[int],
) -> dict[str, Vector]:
    """Stopping-time regret at text lengths `marks`, shape (seeds, marks), of a new learner on each text.

    All learners see the same texts. The best arm is the one that takes the fewest rounds for the longest
    text, on average over them: the regret in expectation, not in hindsight of each text.
    """
    used: dict[str, list[list[int]]] = {name: [] for name in makers}
    alone = []
    for seed in seeds:
        text = Text.draw(acceptance, arms, marks[-1], rng=Random(seed))
        alone.append([[text.rounds(arm, mark) for mark in marks] for arm in range(len(arms))])
        for name, maker in makers.items():
            run = play(maker(len(arms)), text, rng=Random(seed + 10_000))
            used[name].append([run.rounds_to(mark) for mark in marks])
    fixed = np.array(alone, dtype=np.float64)
    best = fixed[:, fixed.mean(axis=0)[:, -1].argmin()]
    return {name: np.array(rounds, dtype=np.float64) - best for name, rounds in used.items()}


def fit(x: ArrayLike, y: ArrayLike, shape: str) -> tuple[float, float]:
    """R^2 and slope of the least-squares line y = a + slope * shape(x)."""
    f, y = SHAPES[shape](np.asarray(x, dtype=np.float64)), np.asarray(y, dtype=np.float64)
    slope, start = np.polyfit(f, y, 1)
    return float(1.0 - np.var(y - start - slope * f) / np.var(y)), float(slope)


def exponent(x: ArrayLike, y: ArrayLike) -> float:
    """The slope of ln y against ln x: 1 is linear growth, 1/2 the square root, 0 none."""
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])


def spread(values: Vector) -> Vector:
    """The standard error of the mean over seeds, the first axis."""
    error: Vector = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return error

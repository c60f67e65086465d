"""One random choice out of a few weights."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def draw(weights: Sequence[float], rng: Random) -> tuple[int, float]:
    """A position with chance proportional to its weight, and that chance; uniform if all weights are 0."""
    total = sum(weights)
    if not total > 0.0:
        n = len(weights)
        return int(rng.random() * n), 1.0 / n
    left = rng.random() * total
    for i, weight in enumerate(weights):
        left -= weight
        if left < 0.0:
            return i, weight / total
    # rounding left a crumb over: it goes to the heaviest, never to a weight of 0
    heaviest = max(weights)
    return weights.index(heaviest), heaviest / total

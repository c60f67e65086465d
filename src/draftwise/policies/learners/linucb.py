"""LinUCB: UCB on a linear guess of the reward from the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import inf, sqrt
from operator import mul
from random import Random
from typing import Any

import numpy as np

from ...state.learned import LEARNED, learned
from .learner import InFlight


def _inverses(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Ridge regressions: X'X adds."""
    return [inverse.ravel().tolist() for inverse, _ in map(partial(_solve, base, parts), range(base.arms))]


def _thetas(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Ridge regressions: X'y adds."""
    solved = map(partial(_solve, base, parts), range(base.arms))
    return [(inverse @ sums).tolist() for inverse, sums in solved]


def _solve(base: Any, parts: Sequence[Any], arm: int) -> tuple[Any, Any]:
    """Return the inverse of A = ridge + X'X, with what all parts add to it, and X'y, for one arm."""
    d = base.dimensions
    before, *grams = [np.linalg.inv(np.array(one.inverses[arm]).reshape(d, d)) for one in (base, *parts)]
    start = before @ np.array(base.thetas[arm])
    sums = [gram @ np.array(part.thetas[arm]) - start for gram, part in zip(grams, parts, strict=True)]
    return np.linalg.inv(before + sum(gram - before for gram in grams)), start + sum(sums)


@dataclass(slots=True)
class LinUCB(InFlight):
    """The highest theta.x + strength * sqrt(x' A^-1 x), a ridge regression of its own for each arm.

    Li et al. 2010, Algorithm 1 (disjoint models); the contextual extension that TapOut and MetaSD name as
    future work. `features` x has `dimensions` numbers of size about 1; put a constant 1 among them. A^-1 is
    kept by the Sherman-Morrison formula. k decisions in flight shrink v = x' A^-1 x to v / (1 + k v): what
    it would be had they all been made at this x. No strength is published for this use; 0.5 is ours.
    """

    arms: int
    dimensions: int
    _: KW_ONLY
    strength: float = 0.5
    ridge: float = 1.0
    thetas: list[list[float]] = field(default_factory=list, metadata=learned(_thetas))
    inverses: list[list[float]] = field(default_factory=list, metadata=learned(_inverses))
    flight: list[int] = field(default_factory=list, metadata=LEARNED)

    def __post_init__(self) -> None:
        d = self.dimensions
        self.thetas = self.thetas or [[0.0] * d for _ in range(self.arms)]
        self.inverses = self.inverses or [self._start() for _ in range(self.arms)]
        self.flight = self.flight or [0] * self.arms

    def _start(self) -> list[float]:
        d = self.dimensions
        return [1.0 / self.ridge if i % (d + 1) == 0 else 0.0 for i in range(d * d)]

    def choose(self, allowed: Sequence[int], rng: Random, features: Sequence[float]) -> tuple[int, float]:
        products = [a * b for a in features for b in features]
        best, top = allowed[0], -inf
        for arm in allowed:
            v = sum(map(mul, self.inverses[arm], products))
            v /= 1.0 + self.flight[arm] * v
            index = sum(map(mul, self.thetas[arm], features)) + self.strength * sqrt(max(v, 0.0))
            if index > top:
                best, top = arm, index
        self.flight[best] += 1
        return best, 1.0

    def update(self, arm: int, reward: float, propensity: float, features: Sequence[float]) -> None:
        """The reward of a decision of `arm` that was made at `features`."""
        self.abort(arm)
        d, inverse, theta = self.dimensions, self.inverses[arm], self.thetas[arm]
        ax = [sum(map(mul, inverse[i : i + d], features)) for i in range(0, d * d, d)]
        shrink = 1.0 / (1.0 + sum(map(mul, ax, features)))
        miss = (reward - sum(map(mul, theta, features))) * shrink
        self.thetas[arm] = [t + miss * a for t, a in zip(theta, ax, strict=True)]
        outer = [a * b * shrink for a in ax for b in ax]
        self.inverses[arm] = [old - new for old, new in zip(inverse, outer, strict=True)]

    def untried(self, arm: int) -> bool:
        """Return whether nothing of `arm` is known or on its way."""
        return not self.flight[arm] and self.inverses[arm] == self._start()

    def estimates(self) -> list[float]:
        """The guess at the features (1, 0, 0, ...): the level of each arm, if the constant comes first."""
        return [theta[0] for theta in self.thetas]

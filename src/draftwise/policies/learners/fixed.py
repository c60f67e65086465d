"""Learners that learn nothing: always the same arm, or any arm at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .learner import Uncounted


@dataclass(slots=True)
class Fixed(Uncounted):
    """Plays `arm` whenever it is allowed, else the first allowed one, and learns nothing."""

    arms: int
    arm: int = 0

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        return (self.arm if self.arm in allowed else allowed[0]), 1.0

    def update(self, arm: int, reward: float, propensity: float) -> None:
        """Nothing to learn."""

    def estimates(self) -> list[float]:
        return [float(i == self.arm) for i in range(self.arms)]


@dataclass(slots=True)
class Uniform(Uncounted):
    """Chooses uniformly at random and learns nothing."""

    arms: int

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        n = len(allowed)
        return allowed[int(rng.random() * n)], 1.0 / n

    def update(self, arm: int, reward: float, propensity: float) -> None:
        """Nothing to learn."""

    def estimates(self) -> list[float]:
        return [1.0 / self.arms] * self.arms

"""Every allowed arm with the same chance: the baseline a learner has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(slots=True)
class Uniform:
    """Chooses uniformly at random and learns nothing."""

    arms: int

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        n = len(allowed)
        return allowed[int(rng.random() * n)], 1.0 / n

    def update(self, arm: int, reward: float, propensity: float) -> None:
        """Nothing to learn."""

    def abort(self, arm: int) -> None:
        """Nothing was counted."""

    def estimates(self) -> list[float]:
        return [1.0 / self.arms] * self.arms

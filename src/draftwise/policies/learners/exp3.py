"""EXP3: exponential weights on estimated rewards, mixed with uniform exploration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp
from random import Random

from ...state.learned import adds, learned
from .draw import draw


@dataclass(slots=True)
class EXP3:
    """p = (1 - gamma) w / sum(w) + gamma / K, and w *= exp(gamma r / (p K)) for the arm that was played.

    MetaSD (arXiv 2604.05417), Algorithm 7, with its gamma of 0.4, after Auer et al. 2002. The weights are
    kept as logarithms, so that no arm is lost to underflow, and p is the propensity of the day of the
    choice. Among fewer allowed arms the same distribution holds over those.
    """

    arms: int
    _: KW_ONLY
    gamma: float = 0.4
    logs: list[float] = field(default_factory=list, metadata=learned(adds))

    def __post_init__(self) -> None:
        self.logs = self.logs or [0.0] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        chances = self.chances(allowed)
        i, chance = draw(chances, rng)
        return allowed[i], chance

    def chances(self, allowed: Sequence[int]) -> list[float]:
        """The probability of each allowed arm, in order."""
        logs = [self.logs[arm] for arm in allowed]
        top = max(logs)
        weights = [exp(x - top) for x in logs]
        keep, floor = (1.0 - self.gamma) / sum(weights), self.gamma / len(weights)
        return [keep * w + floor for w in weights]

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.logs[arm] += self.gamma * reward / (propensity * self.arms)

    def abort(self, arm: int) -> None:
        """Nothing was counted: a random choice spreads a batch by itself."""

    def estimates(self) -> list[float]:
        return self.chances(range(self.arms))

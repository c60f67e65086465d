"""UCB-Tuned: UCB1 with a bonus that shrinks for arms whose reward hardly varies."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

from ...state.learned import adds, learned
from .ucb import UCB1


@dataclass(slots=True)
class UCBTuned(UCB1):
    """UCB1 with the bonus strength * sqrt(ln t / n * min(1/4, V)), V = variance + sqrt(2 ln t / n).

    Auer, Cesa-Bianchi and Fischer 2002, section 4; 1/4 is the largest variance of a reward in [0, 1].
    """

    squares: list[float] = field(default_factory=list, metadata=learned(adds))

    def __post_init__(self) -> None:
        # not super(): a dataclass with slots is a second class, which super() without arguments misses
        UCB1.__post_init__(self)
        self.squares = self.squares or [0.0] * self.arms

    def bonus(self, arm: int, n: float, log_t: float) -> float:
        seen = self.pulls[arm]
        if not seen:
            return self.strength * sqrt(0.25 * log_t / n)
        mean = self.sums[arm] / seen
        variance = self.squares[arm] / seen - mean * mean + sqrt(2.0 * log_t / n)
        return self.strength * sqrt(log_t / n * min(0.25, variance))

    def update(self, arm: int, reward: float, propensity: float) -> None:
        UCB1.update(self, arm, reward, propensity)
        self.squares[arm] += reward * reward

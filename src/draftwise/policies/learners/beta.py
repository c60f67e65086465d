"""Beta-Bernoulli Thompson sampling: for rewards that are yes or no, such as one accepted token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp, inf, log, nan, sqrt
from random import Random

from ...state.learned import adds, follows, learned

_LOG4 = log(4.0)
_SQUEEZE = 1.0 + log(5.0) - _LOG4


@dataclass(slots=True)
class BetaThompson:
    """Thompson sampling with a Beta prior on each chance of success.

    The token-level learner of TapOut (arXiv 2511.02017), which names no prior; Beta(1, 1) is uniform. A
    reward r between 0 and 1 counts as r successes and 1 - r failures. Draws differ within a batch, so
    nothing is counted in flight. The chance of an arm has no closed form: the propensity is NaN.
    """

    arms: int
    _: KW_ONLY
    success: float = 1.0
    failure: float = 1.0
    successes: list[float] = field(default_factory=list, metadata=learned(adds))
    failures: list[float] = field(default_factory=list, metadata=learned(adds))
    shapes: list[list[float]] = field(default_factory=list, repr=False, metadata=learned(follows))

    def __post_init__(self) -> None:
        self.successes = self.successes or [self.success] * self.arms
        self.failures = self.failures or [self.failure] * self.arms
        if not self.shapes:
            self.merged()

    def merged(self) -> None:
        """Compute what the draws need from the counts."""
        self.shapes = [_shape(*ab) for ab in zip(self.successes, self.failures, strict=True)]

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        # Cheng's algorithm BB, in place: the standard library takes twice as long, a call per arm a sixth
        # more. x / (1 - x) finds the highest draw as well as x does.
        shapes, uniform = self.shapes, rng.random
        best, top = allowed[0], -inf
        for arm in allowed:
            shape = shapes[arm]
            if not shape:
                odds = _slow(self.successes[arm], self.failures[arm], rng)
            else:
                slope, rise, low, high, total, flip = shape
                while True:
                    u = uniform() or 0.5  # a logarithm follows
                    logit = log(u / (1.0 - u))
                    w = low * exp(slope * logit)
                    z = u * u * uniform()
                    r = rise * logit
                    if low + r - w + _SQUEEZE >= 5.0 * z or _accept(r, w, z, total, high):
                        break
                odds = high / w if flip else w / high
            if odds > top:
                best, top = arm, odds
        return best, nan

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.successes[arm] += reward
        self.failures[arm] += 1.0 - reward
        self.shapes[arm] = _shape(self.successes[arm], self.failures[arm])

    def abort(self, arm: int) -> None:
        """Nothing was counted."""

    def estimates(self) -> list[float]:
        return [a / (a + b) for a, b in zip(self.successes, self.failures, strict=True)]


def _shape(a: float, b: float) -> list[float]:
    """What algorithm BB of Cheng 1978 needs to draw from Beta(a, b); empty where it does not hold."""
    if a <= 1.0 or b <= 1.0:
        return []
    low, high, total = min(a, b), max(a, b), a + b
    slope = sqrt((total - 2.0) / (2.0 * a * b - total))
    return [slope, 1.0 + low * slope, low, high, total, float(a > b)]


def _accept(r: float, w: float, z: float, total: float, high: float) -> bool:
    return z <= 0.0 or r - _LOG4 + total * log(total / (high + w)) >= log(z)


def _slow(a: float, b: float, rng: Random) -> float:
    x = rng.betavariate(a, b)
    return x / (1.0 - x) if x < 1.0 else inf

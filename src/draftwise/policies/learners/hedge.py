"""Learners with full information: Hedge and NormalHedge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp, log, sqrt
from random import Random

from ...state.learned import adds, follows, learned
from .learner import Uncounted, draw


@dataclass(slots=True)
class Hedge(Uncounted):
    """w is proportional to exp(-eta * cumulative loss); an arm is drawn with chance w.

    Freund and Schapire 1997; without a `rate` eta in round t is sqrt(8 ln N / t), which needs no horizon
    (Cesa-Bianchi and Lugosi 2006, Theorem 2.3). HedgeSpec's (arXiv 2510.20064) own eta is not known. `memory`
    below 1 forgets: past losses and rounds shrink by it at each step. An arm asleep is charged what the
    learner itself lost.
    """

    arms: int
    _: KW_ONLY
    rate: float | None = None
    memory: float = 1.0
    losses: list[float] = field(default_factory=list, metadata=learned(adds))
    rounds: float = field(default=0.0, metadata=learned(adds))

    def __post_init__(self) -> None:
        self.losses = self.losses or [0.0] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        return draw(allowed, self._weights(allowed), rng)

    def _weights(self, allowed: Sequence[int]) -> list[float]:
        """Return the weight of each allowed arm, in order, relative to the best one's."""
        rate = self.rate
        if rate is None:
            rate = sqrt(8.0 * log(self.arms) / (self.rounds + 1.0))
        losses = [self.losses[arm] for arm in allowed]
        least = min(losses)
        return [exp(rate * (least - x)) for x in losses]

    def learn_all(self, losses: Sequence[float | None]) -> None:
        own = _expected_loss(self._weights(range(self.arms)), losses) if None in losses else 0.0
        memory = self.memory
        self.losses = [
            memory * old + (own if new is None else new) for old, new in zip(self.losses, losses, strict=True)
        ]
        self.rounds = memory * self.rounds + 1.0

    def estimates(self) -> list[float]:
        weights = self._weights(range(self.arms))
        total = sum(weights)
        return [w / total for w in weights]


def _expected_loss(weights: Sequence[float], losses: Sequence[float | None]) -> float:
    """Return the mean loss of the arms awake, by weight; by number if none of them has any weight."""
    awake = [(w, x) for w, x in zip(weights, losses, strict=True) if x is not None]
    total = sum(w for w, _ in awake)
    if total > 0.0:
        return sum(w * x for w, x in awake) / total
    return sum(x for _, x in awake) / len(awake) if awake else 0.0


@dataclass(slots=True)
class NormalHedge(Uncounted):
    """w is proportional to [R]+ / c * exp([R]+^2 / (2c)), where c makes the mean of exp([R]+^2 / (2c)) e.

    Chaudhuri, Freund and Hsu 2009 (arXiv 0903.2851), the learner of HedgeSpec (arXiv 2510.20064). R is
    the regret to each arm, uniform weights if none is positive. There is no learning rate and, as
    published, no forgetting: `memory` below 1 shrinks the regrets by it at each step (ours). An arm asleep
    has no regret in that step.
    """

    arms: int
    _: KW_ONLY
    memory: float = 1.0
    regrets: list[float] = field(default_factory=list, metadata=learned(adds))
    weights: list[float] = field(default_factory=list, metadata=learned(follows))
    scale: float = field(default=0.0, metadata=learned(follows))

    def __post_init__(self) -> None:
        self.regrets = self.regrets or [0.0] * self.arms
        self.weights = self.weights or [1.0 / self.arms] * self.arms

    def merged(self) -> None:
        """Weigh the arms by their regrets: a step without losses."""
        self.learn_all([0.0] * self.arms)

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        return draw(allowed, [self.weights[arm] for arm in allowed], rng)

    def learn_all(self, losses: Sequence[float | None]) -> None:
        own, memory = _expected_loss(self.weights, losses), self.memory
        self.regrets = [
            memory * old + (0.0 if loss is None else own - loss)
            for old, loss in zip(self.regrets, losses, strict=True)
        ]
        # the square of anything smaller is not a number to divide by
        if max(self.regrets) <= 1e-150:
            self.weights = [1.0 / self.arms] * self.arms
            return
        self.scale = solve_scale(self.regrets, start=self.scale)
        half = 0.5 / self.scale
        raw = [r * exp(r * r * half) if r > 0.0 else 0.0 for r in self.regrets]
        total = sum(raw)
        self.weights = [w / total for w in raw]

    def estimates(self) -> list[float]:
        return list(self.weights)


def solve_scale(regrets: Sequence[float], *, start: float = 0.0) -> float:
    """The c at which the mean of exp([R]+^2 / (2c)) is e; one R must be positive.

    With s = 1 / c, ln mean exp(s R^2 / 2) - 1 is convex and increasing, so Newton's method falls
    monotonically to the root from its right and lands there after one step from its left. The root lies in
    [1, 1 + ln N] / max(R^2 / 2), where no exponential overflows. `start`, the c of the step before, saves
    most of the steps, of which there are up to 8 without.
    """
    heights = [0.5 * r * r for r in regrets if r > 0.0]
    n = len(regrets)
    flat, top, ln_n = n - len(heights), max(heights), log(n)
    low, high = 1.0 / top, (1.0 + ln_n) / top
    s = min(max(1.0 / start, low), high) if start > 0.0 else high
    for _ in range(49):
        powers = [exp(s * h) for h in heights]
        total = sum(powers) + flat
        excess = log(total) - ln_n - 1.0
        if abs(excess) < 1e-12:
            break
        slope = sum(map(float.__mul__, heights, powers)) / total
        s = min(max(s - excess / slope, low), high)
    return 1.0 / s

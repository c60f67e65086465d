"""UCB1: the mean reward plus a bonus for what has been tried less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf, log, sqrt
from random import Random

from ...state.learned import LEARNED, adds, learned


@dataclass(slots=True)
class UCB1:
    """Each arm once, then the highest mean + strength * sqrt(2 ln t / n).

    Auer, Cesa-Bianchi and Fischer 2002, Figure 1 (strength 1; t is the number of plays so far). MetaSD
    (arXiv 2604.05417) publishes the same index with a strength beta of 0.01, TapOut (arXiv 2511.02017)
    with 1. Pulls in flight count in t and n. An arm whose first reward is still out is rated by the mean
    over all arms, so it does not get a whole batch.
    """

    arms: int
    _: KW_ONLY
    strength: float = 1.0
    pulls: list[float] = field(default_factory=list, metadata=learned(adds))
    sums: list[float] = field(default_factory=list, metadata=learned(adds))
    flight: list[int] = field(default_factory=list, metadata=LEARNED)

    def __post_init__(self) -> None:
        self.pulls = self.pulls or [0.0] * self.arms
        self.sums = self.sums or [0.0] * self.arms
        self.flight = self.flight or [0] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        arm = self._best(allowed)
        self.flight[arm] += 1
        return arm, 1.0

    def _best(self, allowed: Sequence[int]) -> int:
        pulls, sums, flight, bonus = self.pulls, self.sums, self.flight, self.bonus
        t = sum(pulls) + sum(flight)
        if not t:
            return allowed[0]
        log_t = log(t)
        best, top = allowed[0], -inf
        for arm in allowed:
            seen = pulls[arm]
            n = seen + flight[arm]
            if not n:
                return arm
            mean = sums[arm] / seen if seen else sum(sums) / (sum(pulls) or 1.0)
            index = mean + bonus(arm, n, log_t)
            if index > top:
                best, top = arm, index
        return best

    def bonus(self, arm: int, n: float, log_t: float) -> float:
        """What `arm` gets on top of its mean after n of t pulls, those in flight included."""
        return self.strength * sqrt(2.0 * log_t / n)

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.abort(arm)
        self.pulls[arm] += 1.0
        self.sums[arm] += reward

    def abort(self, arm: int) -> None:
        # feedback on a decision from before a restart finds nothing in flight
        if self.flight[arm]:
            self.flight[arm] -= 1

    def estimates(self) -> list[float]:
        return [total / n if n else 0.0 for total, n in zip(self.sums, self.pulls, strict=True)]

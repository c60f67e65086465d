"""EXP3 and EXP3Spec: exponential weights on rewards or losses estimated from the arm that ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp, log, sqrt
from random import Random

from ...state.learned import LEARNED, adds, learned
from .learner import Uncounted, draw


@dataclass(slots=True)
class EXP3(Uncounted):
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
        return draw(allowed, self.chances(allowed), rng)

    def chances(self, allowed: Sequence[int]) -> list[float]:
        """Return the probability of each allowed arm, in order."""
        logs = [self.logs[arm] for arm in allowed]
        top = max(logs)
        weights = [exp(x - top) for x in logs]
        keep, floor = (1.0 - self.gamma) / sum(weights), self.gamma / len(weights)
        return [keep * w + floor for w in weights]

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.logs[arm] += self.gamma * reward / (propensity * self.arms)

    def estimates(self) -> list[float]:
        return self.chances(range(self.arms))


@dataclass(slots=True)
class EXP3Spec:
    """p in round t is proportional to exp(-eta_t * sum of (1 - r) / p), with eta_t = sqrt(ln K / (t K)).

    BanditSpec (arXiv 2505.15141), EXP3Spec: its loss (L + 1 - Y) / L is 1 - r for the reward
    r = (Y - 1) / L. No arm is mixed in beyond that. Rounds in flight count in t, and p is the propensity of
    the day of the choice.
    """

    arms: int
    _: KW_ONLY
    losses: list[float] = field(default_factory=list, metadata=learned(adds))
    rounds: int = field(default=0, metadata=learned(adds))
    flight: int = field(default=0, metadata=LEARNED)

    def __post_init__(self) -> None:
        self.losses = self.losses or [0.0] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        chosen = draw(allowed, self._weights(allowed), rng)
        self.flight += 1
        return chosen

    def _weights(self, allowed: Sequence[int]) -> list[float]:
        t = self.rounds + self.flight + 1
        rate = sqrt(log(self.arms) / (t * self.arms))
        losses = [self.losses[arm] for arm in allowed]
        least = min(losses)
        return [exp(rate * (least - x)) for x in losses]

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.abort(arm)
        self.rounds += 1
        self.losses[arm] += (1.0 - reward) / propensity

    def abort(self, arm: int) -> None:
        # feedback on a decision from before a restart finds nothing in flight
        if self.flight:
            self.flight -= 1

    def chances(self, allowed: Sequence[int]) -> list[float]:
        """Return the probability of each allowed arm, in order."""
        weights = self._weights(allowed)
        total = sum(weights)
        return [w / total for w in weights]

    def estimates(self) -> list[float]:
        return self.chances(range(self.arms))

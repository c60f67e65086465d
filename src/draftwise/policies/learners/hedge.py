"""Hedge: exponential weights on the losses of all arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp, log, sqrt
from random import Random

from ...state.learned import adds, learned
from .draw import draw


@dataclass(slots=True)
class Hedge:
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
        i, chance = draw(self.weights(allowed), rng)
        return allowed[i], chance

    def weights(self, allowed: Sequence[int]) -> list[float]:
        """The weight of each allowed arm, in order, relative to the best one's."""
        rate = self.rate
        if rate is None:
            rate = sqrt(8.0 * log(self.arms) / (self.rounds + 1.0))
        losses = [self.losses[arm] for arm in allowed]
        least = min(losses)
        return [exp(rate * (least - x)) for x in losses]

    def learn_all(self, losses: Sequence[float | None]) -> None:
        own = 0.0
        if None in losses:
            own = expected_loss(self.weights(range(self.arms)), losses)
        memory = self.memory
        self.losses = [
            memory * old + (own if new is None else new) for old, new in zip(self.losses, losses, strict=True)
        ]
        self.rounds = memory * self.rounds + 1.0

    def abort(self, arm: int) -> None:
        """Nothing was counted: full information does not depend on what was played."""

    def estimates(self) -> list[float]:
        weights = self.weights(range(self.arms))
        total = sum(weights)
        return [w / total for w in weights]


def expected_loss(weights: Sequence[float], losses: Sequence[float | None]) -> float:
    """The mean loss of the arms awake, by weight; by number if none of them has any weight."""
    awake = [(w, x) for w, x in zip(weights, losses, strict=True) if x is not None]
    total = sum(w for w, _ in awake)
    if total > 0.0:
        return sum(w * x for w, x in awake) / total
    return sum(x for _, x in awake) / len(awake) if awake else 0.0

"""The protocols of learners: dataclasses of plain numbers that choose an arm and learn from rewards."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol


class Chooser(Protocol):
    """What every learner can do. Its fields are its whole saved state: ints, floats and lists of them.

    `allowed` is a non-empty sorted sequence of the arms in use now. A choice counts as in flight until
    its feedback comes, since a batch of requests asks many times before the first answer.
    """

    arms: int

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        """An arm out of `allowed` and its propensity: the chance it had, 1.0 if nothing was random, NaN
        if the chance has no closed form (Thompson sampling)."""

    def abort(self, arm: int) -> None:
        """The decision came to nothing: it only leaves the count of those in flight."""

    def estimates(self) -> list[float]:
        """Return the present value of each arm, higher is better, for displays."""


class Learner(Chooser, Protocol):
    """Learns from the chosen arm alone (bandit feedback)."""

    def update(self, arm: int, reward: float, propensity: float) -> None:
        """One reward in [0, 1] for a decision of `arm`, with the propensity of the day of its choice."""


class FullInformation(Chooser, Protocol):
    """Learns from all arms at once, the ones not played too."""

    def learn_all(self, losses: Sequence[float | None]) -> None:
        """One loss in [0, 1] per arm; None for an arm that was asleep and has no loss this time."""


class Uncounted:
    """Learners that do not look at what is in flight: their random choices spread a batch by themselves."""

    __slots__ = ()

    def abort(self, arm: int) -> None:
        """Nothing was counted."""


class InFlight:
    """Learners that count each arm's decisions until their feedback comes."""

    __slots__ = ()
    flight: list[int]

    def abort(self, arm: int) -> None:
        # feedback on a decision from before a restart finds nothing in flight
        if self.flight[arm]:
            self.flight[arm] -= 1


def draw(allowed: Sequence[int], weights: Sequence[float], rng: Random) -> tuple[int, float]:
    """An arm with chance proportional to its weight, and that chance; uniform if all weights are 0."""
    total = sum(weights)
    if not total > 0.0:
        n = len(weights)
        return allowed[int(rng.random() * n)], 1.0 / n
    left = rng.random() * total
    for arm, weight in zip(allowed, weights, strict=True):
        left -= weight
        if left < 0.0:
            return arm, weight / total
    # rounding left a crumb over: it goes to the heaviest, never to a weight of 0
    heaviest = max(weights)
    return allowed[weights.index(heaviest)], heaviest / total

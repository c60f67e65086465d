"""Sequential halving, and exploration followed by a commitment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import ceil, log
from random import Random

from ...state.learned import LEARNED
from .learner import InFlight


@dataclass(slots=True)
class SequentialHalving(InFlight):
    """In each phase every survivor gets floor(T / (survivors * phases)) pulls; the better half stays.

    Karnin, Koren and Somekh 2013, and MetaSD (arXiv 2604.05417), Algorithm 5, with two corrections: the
    phases are ceil(log2 K), since floor leaves two survivors of 3, 5, 6 or 7 arms, and the half with the
    *higher* mean stays (the inequality is printed the other way round). `budget` is T in rounds; a phase
    has at least one pull per survivor, and budget 0 is the one pull between eliminations of MetaSD's
    appendix F.4. Means are over all pulls so far, not the phase's alone, because one pull says little.
    A survivor out of use does not hold up a phase; when all are, the best allowed arm is played. One that was
    never ready stays until it has played.
    """

    arms: int
    _: KW_ONLY
    budget: int = 0
    survivors: list[int] = field(default_factory=list, metadata=LEARNED)
    counts: list[int] = field(default_factory=list, metadata=LEARNED)
    pulls: list[int] = field(default_factory=list, metadata=LEARNED)
    sums: list[float] = field(default_factory=list, metadata=LEARNED)
    flight: list[int] = field(default_factory=list, metadata=LEARNED)

    def __post_init__(self) -> None:
        self.survivors = self.survivors or list(range(self.arms))
        self.counts = self.counts or [0] * self.arms
        self.pulls = self.pulls or [0] * self.arms
        self.sums = self.sums or [0.0] * self.arms
        self.flight = self.flight or [0] * self.arms

    @property
    def quota(self) -> int:
        """Pulls per survivor in this phase."""
        phases = max(1, (self.arms - 1).bit_length())
        return max(1, self.budget // (len(self.survivors) * phases))

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        left = self._left(allowed)
        while left and min(self.counts[arm] for arm in left) >= self.quota and self._halve():
            left = self._left(allowed)
        arm = self._next(left) if left else max(allowed, key=self._mean)
        self.flight[arm] += 1
        return arm, 1.0

    def _left(self, allowed: Sequence[int]) -> list[int]:
        return self.survivors if len(allowed) == self.arms else [a for a in self.survivors if a in allowed]

    def _next(self, left: Sequence[int]) -> int:
        return min(left, key=lambda arm: self.counts[arm] + self.flight[arm])

    def _halve(self) -> bool:
        """Drop the worse half of the survivors that have played; whether there was one."""
        played = [arm for arm in self.survivors if self.pulls[arm]]
        if len(played) < 2:
            return False
        ranked = sorted(played, key=self._mean, reverse=True)
        worse = ranked[(len(ranked) + 1) // 2 :]
        self.survivors = [arm for arm in self.survivors if arm not in worse]
        self.counts = [0] * self.arms
        return True

    def _mean(self, arm: int) -> float:
        return self.sums[arm] / self.pulls[arm] if self.pulls[arm] else 0.0

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.abort(arm)
        self.counts[arm] += 1
        self.pulls[arm] += 1
        self.sums[arm] += reward

    def estimates(self) -> list[float]:
        return [self._mean(arm) for arm in range(self.arms)]


@dataclass(slots=True)
class ExploreThenCommit(SequentialHalving):
    """Sequential halving over the first c ln B rounds, arm by arm, then the survivor for good.

    MetaSD (arXiv 2604.05417), Algorithm 4. It leaves c open and counts B in tokens; a learner sees rounds,
    so B = `horizon` is the rounds of a text, and c = `constant` = 4 gives seven arms about three pulls each
    at 256 rounds. `budget`, if given, is the number of exploring rounds itself. A phase plays one arm to
    its quota before the next and starts with the arm of the round before, which is the fewest switches;
    when the budget runs out before the halving does, the best arm so far is taken, once all have played.
    """

    horizon: int = 256
    constant: float = 4.0
    last: int = field(default=-1, metadata=LEARNED)

    def __post_init__(self) -> None:
        # not super(): a dataclass with slots is a second class, which super() without arguments misses
        SequentialHalving.__post_init__(self)
        self.budget = self.budget or ceil(self.constant * log(self.horizon))

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        spent = sum(self.pulls) >= max(self.budget, self.arms)
        if spent and all(self.pulls[arm] for arm in self.survivors):
            self.survivors = [max(self.survivors, key=self._mean)]
        self.last, chance = SequentialHalving.choose(self, allowed, rng)
        return self.last, chance

    def _next(self, left: Sequence[int]) -> int:
        wanting = [arm for arm in left if self.counts[arm] + self.flight[arm] < self.quota]
        if self.last in (wanting or left):
            return self.last
        return wanting[0] if wanting else left[0]

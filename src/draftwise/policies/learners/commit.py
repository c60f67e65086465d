"""Pure exploration, then commit: for drafters that are expensive to switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log
from random import Random

from ...state.learned import LEARNED
from .halving import SequentialHalving


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


def switching_cost(played: Sequence[int], tokens: Sequence[int], *, rate: float) -> float:
    """What the switches in a run of rounds cost, where `tokens[t]` were written in round t.

    A drafter that comes back must first read what was written since its own last round: `rate` per token
    (MetaSD, arXiv 2604.05417, section on switching cost); one that was never played reads all. The first
    round is no switch.
    """
    cost, written = 0.0, 0
    upto: dict[int, int] = {}
    for t, (arm, new) in enumerate(zip(played, tokens, strict=True)):
        if t and played[t - 1] != arm:
            cost += rate * (written - upto.get(arm, 0))
        written += new
        upto[arm] = written
    return cost

"""What came of a draft, and the feedback a policy learns from. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from .arms import Decision
from .drafts import Signals


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of a round: of drafting for this request, and of the whole target pass, which read
    `pass_tokens` tokens of `requests` requests together."""

    draft: float
    target: float
    pass_tokens: int
    requests: int = 1

    def share(self, tokens: int) -> float:
        """The seconds of the pass for `tokens` of its tokens: it is charged by what each request put in."""
        return self.target * tokens / self.pass_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm did in one round, and in how many `seconds` of drafting and its share of the target pass.

    NaN where the round also read the prompt, so that its time is not the arm's; `spent`, which has
    them apart, is then missing. `overlaps` has 1 - TV between the raw laws (temperature 1) of target and
    drafter for each position of the draft (`accept.block`: of a tree, one path), nothing unless the
    recorder reads it. `censored` rounds are not counted for their arm.
    """

    arm: int
    accepted: int
    drafted: int
    seconds: float = nan
    censored: bool = False
    reward: float = 0.0
    overlaps: tuple[float, ...] = ()
    signals: tuple[Signals, ...] = ()
    spent: Spent | None = None

    def rewarded(self, reward: float) -> Outcome:
        """The same with its reward; many times faster than `dataclasses.replace`, once a round."""
        return Outcome(
            self.arm,
            self.accepted,
            self.drafted,
            self.seconds,
            self.censored,
            reward,
            self.overlaps,
            self.signals,
            self.spent,
        )

    @property
    def overlap(self) -> float:
        """The mean of `overlaps`; NaN where there are none."""
        return sum(self.overlaps) / len(self.overlaps) if self.overlaps else nan


@dataclass(frozen=True, slots=True)
class Window:
    """What a text says of one draft that began where a round began: its drafter, the context it was in, and
    the chance that each of its tokens was accepted, up to the last that is known."""

    drafter: int
    context: int
    accepts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grade:
    """How well a drafter knew one committed token x, had it drafted there.

    `accept` is min(1, q(x) / p(x)), the chance that its draft was accepted given that the text went on with
    x; `overlap` is sum_v min(p(v), q(v)) = 1 - TV, the same before x was known (NaN where the target's row is
    gone). A drafter that picks d has q = 1 at d. Laws are those that are decoded from, not the raw ones.
    `deeper`, for a drafter that knows less of a token the more of its own draft stands before it, has the
    same two numbers for drafts in which 1, 2, ... tokens do, the last for all longer ones.
    """

    accept: float
    overlap: float = nan
    signals: Signals | None = None
    deeper: tuple[tuple[float, float], ...] = ()

    def at(self, place: int) -> tuple[float, float]:
        """`accept` and `overlap` where `place` tokens of the same draft stand before this one."""
        if place and self.deeper:
            return self.deeper[min(place, len(self.deeper)) - 1]
        return self.accept, self.overlap


@dataclass(frozen=True, slots=True)
class Feedback:
    """What came of a decision: the outcome of the arm that ran, or `losses` in [0, 1] of all arms on the
    committed text (full information; None for an arm that was asleep), or `windows` of drafts that were held
    against it. With none of them, the round said nothing and only leaves the count of decisions in flight.
    `observed` is what else a recorder hands to its own policy, as numbers of a type that both know."""

    request: int
    decision: Decision
    outcomes: tuple[Outcome, ...] = ()
    losses: tuple[float | None, ...] = ()
    windows: tuple[Window, ...] = ()
    observed: object = None

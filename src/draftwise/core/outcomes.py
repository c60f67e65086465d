"""The outcome of a draft, and the feedback that a policy learns from. Standard library only."""

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
        """The share of the pass's seconds for `tokens` of its tokens: in proportion to what each request put
        in.
        """
        return self.target * tokens / self.pass_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm did in one round, and its `seconds`: of drafting, plus its share of the target pass.

    `seconds` is NaN if the round includes a prefill, since its time is not the arm's; `spent`, which has the
    two times separately, is then missing. `overlaps` has 1 - TV between the raw distributions (temperature 1)
    of target and drafter for each position of the draft (`accept.block`: of a tree, along one path); it is
    empty unless the recorder reads it. `censored` rounds are not counted for their arm.
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
        """A copy with its reward set; much faster than `dataclasses.replace`, which matters once a round."""
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
    """What a text shows about one draft that started where a round started: its drafter, its context, and the
    acceptance probability of each of its tokens, up to the last that is known."""

    drafter: int
    context: int
    accepts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grade:
    """How well a drafter predicted one committed token x, had it drafted at this position.

    `accept` is min(1, q(x) / p(x)), the probability that the draft was accepted given that the text continued
    with x. `overlap` is sum_v min(p(v), q(v)) = 1 - TV, the same probability before x was known (NaN if the
    target's logits are gone). A drafter that picks d has q = 1 at d. The distributions are those used for
    decoding, not the raw ones. For a drafter whose accuracy falls with its own draft tokens before the
    position, `deeper` has the same two numbers for 1, 2, ... such tokens, the last for all longer drafts.
    """

    accept: float
    overlap: float = nan
    signals: Signals | None = None
    deeper: tuple[tuple[float, float], ...] = ()

    def at(self, place: int) -> tuple[float, float]:
        """`accept` and `overlap` if `place` tokens of the same draft come before this one."""
        if place and self.deeper:
            return self.deeper[min(place, len(self.deeper)) - 1]
        return self.accept, self.overlap


@dataclass(frozen=True, slots=True)
class Feedback:
    """The result of a decision: the outcome of the arm that ran, or `losses` in [0, 1] of all arms on the
    committed text (full information; None for an arm that was not available), or `windows` of drafts compared
    with the text. Feedback with none of these only reduces the number of decisions in flight. `observed` is
    further data from a recorder to its own policy, as numbers in a type that both know."""

    request: int
    decision: Decision
    outcomes: tuple[Outcome, ...] = ()
    losses: tuple[float | None, ...] = ()
    windows: tuple[Window, ...] = ()
    observed: object = None

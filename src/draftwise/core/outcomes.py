"""The outcome of a draft, and the feedback that a policy learns from. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from .arms import Decision
from .drafts import Signals


@dataclass(slots=True)
class RoundCost:
    """The seconds of a round.

    Attributes:
        draft: Seconds of drafting for this request.
        target: Seconds of the whole target pass, a prefill included, shared by all requests of the round.
        pass_tokens: Tokens that this pass read, without those of `again`.
        requests: Requests in this pass.
        kind: How the pass was run: passes of different kinds take different times (see `PassInfo`).
        drafter_kind: The same for the drafter's passes.
        again: Tokens of earlier passes that it read again, after a rejection took back the state.
        width: Tokens of its longest row, if all its rows are padded to that; else 0.
    """

    draft: float
    target: float
    pass_tokens: int
    requests: int = 1
    kind: str = ""
    drafter_kind: str = ""
    again: int = 0
    width: int = 0

    def share(self, tokens: int) -> float:
        """Return the seconds of the pass for `tokens` of its tokens, in proportion to all its tokens."""
        return self.target * tokens / self.pass_tokens


@dataclass(slots=True)
class Outcome:
    """What one arm did in one round.

    Attributes:
        arm: An index into `Policy.arms`.
        accepted: Draft tokens that the target accepted.
        drafted: Draft tokens that it verified.
        seconds: Drafting plus this request's share of the target pass; NaN if the round includes a
            prefill, since its time is not the arm's.
        censored: The round is not counted for its arm, for example because the text ended inside the draft.
        reward: In [0, 1], scaled by the recorder.
        overlaps: 1 - TV between the raw distributions (temperature 1) of target and drafter, for each
            position of the draft (one path of a tree); empty unless the recorder reads "overlap".
        signals: Those of the draft, one per token, or none.
        cost: The seconds by part; None if they are not known.
        prefix_length: Of a composite draft, how many tokens its first part had.
        match: The match with which its second part took over; 0 if it did not.
        asked: The longest draft of this arm in this text: its length, or less if all drafts are limited.
    """

    arm: int
    accepted: int
    drafted: int
    seconds: float = nan
    censored: bool = False
    reward: float = 0.0
    overlaps: tuple[float, ...] = ()
    signals: tuple[Signals, ...] = ()
    cost: RoundCost | None = None
    prefix_length: int = 0
    match: int = 0
    asked: int = 0

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
            self.cost,
            self.prefix_length,
            self.match,
            self.asked,
        )

    @property
    def overlap(self) -> float:
        """The mean of `overlaps`; NaN if there are none."""
        return sum(self.overlaps) / len(self.overlaps) if self.overlaps else nan


@dataclass(slots=True)
class Window:
    """What a text shows about one draft, had it started where a round started.

    Attributes:
        drafter: The drafter's index in the policy.
        context: The class of match or text it was made in, an integer defined by the policy.
        accepts: The acceptance probability of each of its tokens, in order, up to the last known.
        token: The last token of the text before it; -1 if that is unknown.
    """

    drafter: int
    context: int
    accepts: tuple[float, ...]
    token: int = -1


@dataclass(slots=True)
class Grade:
    """How well a drafter predicted one committed token x, had it drafted at this position.

    p is the target's distribution there and q the drafter's, both with the request's sampling settings, not
    the raw ones; a drafter that picks d has q(d) = 1.

    Attributes:
        accept: min(1, q(x) / p(x)), in [0, 1]: the acceptance probability, given that the text continues
            with x.
        overlap: sum_v min(p(v), q(v)) = 1 - TV, the same before x is known; NaN if p is gone.
        signals: The input of stop rules there, with the fields that the job names; None if it names none.
        deeper: For a drafter whose accuracy falls with its own draft tokens before the position: `accept`
            and `overlap` after 1, 2, ... such tokens, the last for all longer drafts.
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


@dataclass(slots=True)
class Feedback:
    """The result of a decision; empty feedback means that the decision has no outcome and is dropped.

    Attributes:
        request: The request's id.
        decision: The decision itself, with its propensity.
        outcomes: Of the arm that ran (bandit feedback).
        losses: In [0, 1], one for each arm, on the committed text (full information); None for an arm that
            was not available.
        windows: Of drafts compared with the text.
    """

    request: int
    decision: Decision
    outcomes: tuple[Outcome, ...] = ()
    losses: tuple[float | None, ...] = ()
    windows: tuple[Window, ...] = ()

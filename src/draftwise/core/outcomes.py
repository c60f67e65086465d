"""The outcome of a draft, and the feedback that a policy learns from. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from .arms import Decision
from .drafts import Signals


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of a round.

    Attributes:
        draft: Of drafting for this request.
        target: Of the whole target pass, which serves all requests of the round.
        pass_tokens: Tokens that this pass read.
        requests: Requests that it read them for.
    """

    draft: float
    target: float
    pass_tokens: int
    requests: int = 1

    def share(self, tokens: int) -> float:
        """The share of the pass's seconds for `tokens` of its tokens: in proportion to what each request put
        in."""
        return self.target * tokens / self.pass_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm did in one round.

    Attributes:
        arm: An index into `Policy.arms`.
        accepted: Draft tokens that the target accepted.
        drafted: Draft tokens that it verified.
        seconds: Of drafting and of this request's share of the target pass; NaN where the round also read
            the prompt, so that its time is not the arm's.
        censored: The round is not counted for its arm, as when the text ended inside the draft.
        reward: In [0, 1], as the recorder scales it.
        overlaps: 1 - TV between the raw distributions (temperature 1) of target and drafter, for each
            position of the draft, of a tree one path; empty unless the recorder reads "overlap".
        signals: Those of the draft, one per token, or none.
        spent: The seconds apart; None where `seconds` is NaN.
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
    """What a text says of one draft that would have begun where a round began.

    Attributes:
        drafter: The drafter's index among those that the policy knows.
        context: The class of match or text it was made in, a whole number of the policy's own.
        accepts: The chance that each of its tokens was accepted, in order, up to the last that is known.
    """

    drafter: int
    context: int
    accepts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grade:
    """How well a drafter predicted one committed token x, had it drafted at this position.

    p is the target's distribution there and q the drafter's, both under the request's sampling settings, not
    the raw ones; a drafter that picks d has q(d) = 1.

    Attributes:
        accept: min(1, q(x) / p(x)), in [0, 1]: the chance that a draft was accepted, given that the text went
            on with x.
        overlap: sum_v min(p(v), q(v)) = 1 - TV, the same before x was known; NaN where p is gone.
        signals: What stop rules see there, with the fields that the job names; None if it names none.
        deeper: For a drafter that knows less of a token the more of its own draft stands before it: `accept`
            and `overlap` where 1, 2, ... tokens do, the last for all longer drafts.
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
    """What came of a decision; with nothing in it, the decision is to be forgotten.

    Attributes:
        request: The request's id.
        decision: The decision itself, with its propensity.
        outcomes: Of the arm that ran (bandit feedback).
        losses: In [0, 1], one for each arm, on the committed text (full information); None for an arm that
            was asleep.
        windows: Of drafts that were held against the text.
        observed: What else a recorder hands to its own policy, of a type that both know.
    """

    request: int
    decision: Decision
    outcomes: tuple[Outcome, ...] = ()
    losses: tuple[float | None, ...] = ()
    windows: tuple[Window, ...] = ()
    observed: object = None

"""The drafter: guesses what the target will write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..drafts import Draft, Job
from ..outcomes import Grade
from ..request import Request


@runtime_checkable
class Drafter(Protocol):
    """Guesses what the target will write: it may be wrong and must be fast.

    The team of a loop or of a host calls it, from one thread at a time, under the loop's lock, though not
    always from the same thread. A drafter must not change a request; it may draw from `request.rng` in
    `draft`, and nowhere else. What a method raises costs no text: it is reported in `Round.fault`, the
    drafter is left out of that request, and after three faults out of use. So is a draft that breaks its
    contract (see `Draft`), or that takes more than 5 seconds and longer than the target would for as many
    tokens.

    A drafter whose guess at a position depends on the text before it alone, such as a model, may also have
    `grade` (see `Grader`); any other is graded by the drafts it would have made. Attributes that are read
    where they exist: `branches`, the branches that it gives a draft by itself where the arm has width 1;
    `hidden_states`, true if its signals have `hidden`; `has_probabilities`, false if its probabilities are
    frequencies of matches or none at all, so that stop rules made for a model's distribution fit it badly.
    """

    def hint(self, request: Request) -> float:
        """A cheap, finite score of the draft it could make, such as a match length; 0 = nothing to offer.

        Called once a round and request, before the policy chooses, if the policy `reads_hints`.

        Examples:
            >>> drafter.hint(request)
            1.0
        """

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One draft per job, in order: at most `job.length` tokens (times the width, for a tree), or none.

        Called once a round with the jobs of all requests that drafted with it. A recorder may also ask what
        it would have drafted where the text was shorter: `job.request` is then a copy of the request, with
        the same id and fewer tokens, but never fewer than `observe` has brought.

        Examples:
            >>> (draft,) = drafter.draft([Job(request, 4)])
            >>> draft.tokens
            (3, 4, 5, 6)
        """

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """`new` was committed, after what was observed before; the first call brings the prompt.

        `request.tokens` may already be longer: go by `new`. Called after each round, drafted or not, so that
        it should be cheap. Does nothing unless it is overridden.
        """
        return

    def close(self, request: Request) -> None:
        """Free what is kept for a request, if anything.

        Called once for each request, also for one it never drafted for.
        """
        return


@runtime_checkable
class Waiter(Protocol):
    """A drafter that is not ready for every request at once: it may wait for the target's hidden states."""

    def ready(self, request: Request) -> bool:
        """Return whether it can draft for this request now; until then it counts as unavailable.

        Called once a round and request, before the policy chooses. An empty draft of a drafter that was not
        ready is not counted for or against it.
        """


@runtime_checkable
class Continuer(Protocol):
    """A drafter that can continue another's draft, as if its tokens had been written."""

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """One picked draft per job, after its text and these tokens, which the target may yet reject.

        Called by a drafter that composes drafts (`cascade`), in its own `draft`. Afterwards the drafter must
        be as it was before: it is told of what is committed by `observe` alone.

        Examples:
            >>> (draft,) = drafter.draft_after([Job(request, 2)], [(3, 4)])
            >>> draft.tokens
            (5, 6)
        """


@runtime_checkable
class Matcher(Continuer, Protocol):
    """A lookup that can tell how much of another's draft it has seen before."""

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        """Return the tokens of the match at the end of the text and these tokens; 0: none.

        Called by a drafter that composes drafts (`cascade`), after each token of another's draft.

        Examples:
            >>> lookup.observe(request, request.tokens)
            >>> lookup.match_after(request, (7, 0, 1))
            2
        """


@runtime_checkable
class Guesser(Protocol):
    """A lookup that can tell the tokens of its draft alone, sooner than the whole draft."""

    def guess(self, request: Request, length: int) -> Sequence[int]:
        """Return the tokens that `draft` would give for this length if no rule stopped it.

        Called by recorders of full information, where the lookup did not draft. The text is what `observe`
        brought: `request` may hold more by then.
        """


@runtime_checkable
class Preparer(Protocol):
    """A drafter that can read a long text in pieces, between the rounds of other requests."""

    def prepare(self, request: Request) -> bool:
        """Read one piece of what it has not read of an open request; whether there is another one.

        Called between steps, by `Loop.prepare`, while the request and others are written; until there is none
        left, it counts as unavailable for this request. The next `draft` reads what was written meanwhile.
        """


@dataclass(frozen=True, slots=True)
class GradeJob:
    """Committed tokens to grade a drafter on: `request.tokens[start:]`, n of them.

    `probs` are the target's probabilities of these tokens, n numbers, and `distributions` the distributions
    that they come from, shape (n, vocabulary), where these are still there (`Scores.distributions`); None
    where they are not, or are one-hot. `draft` is the draft that this drafter made at `start` itself, if it
    did. `signals` names the fields of `Signals` that the grades are to have; empty = none.
    """

    request: Request
    start: int
    probs: Sequence[float]
    distributions: Any = None
    draft: Draft | None = None
    signals: frozenset[str] = frozenset()


@runtime_checkable
class Grader(Protocol):
    """A drafter that grades itself on committed text, position by position, in one pass."""

    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade for each token of each job, in order.

        Called by recorders of full information after a round's commit and before `observe` brings these
        tokens. What it raises, or a grade outside [0, 1], is a fault in all of these requests.

        Examples:
            >>> ((grade,),) = drafter.grade([GradeJob(request, 2, [1.0])])
            >>> grade.accept
            1.0
        """

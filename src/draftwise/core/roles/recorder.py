"""The recorder: turns what a round did into feedback for the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..arms import Arm, Decision
from ..drafts import Draft
from ..outcomes import Feedback, Grade, Outcome
from ..request import Request
from .drafter import GradeJob
from .target import Scores


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One request's round, as a recorder gets it, after the commit.

    `tokens` are those just committed, the last of `request.tokens`, at least one; each was written after its
    node of `nodes`, so that `scores.chance(nodes[k], tokens[k])` is what the target gave the k-th.
    """

    request: Request
    decision: Decision
    outcome: Outcome
    draft: Draft
    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    scores: Scores


class Graders(Protocol):
    """What a recorder may ask of the drafters, by name, while `Recorder.add` runs.

    The team implements it. A drafter that fails is left out of the request, and the answer is None: nothing
    raises. `graded_seconds` is the time, in seconds, that `grade`, `redraft` and `guess` have taken so far.
    """

    @property
    def graded_seconds(self) -> float:
        """The seconds that grading has taken since the loop was made."""

    def grades_itself(self, name: str) -> bool:
        """Return whether a drafter has `grade`; any other is graded by the drafts it would have made."""

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None:
        """Return the drafter's grades, one per token of each job; None if it failed."""

    def width(self, name: str) -> int:
        """Return the branches that a drafter gives its drafts by itself: 1 for chains."""

    def drafts_trees(self, name: str) -> bool:
        """Return whether a drafter drafts a chain or, for a wider arm, a tree."""

    def drafts_siblings(self, name: str) -> bool:
        """Return whether, for a wider arm, it drafts a chain with siblings where it drafts no tree."""

    def redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft | None:
        """The draft, maybe a tree, that `name` makes for `arm` where the text is `request.tokens[:at]`.

        None if it failed, or drew its tokens: one draw says little about another. Positions of a request are
        asked in increasing order.
        """

    def guess(self, name: str, request: Request, at: int, arm: Arm) -> tuple[int, ...] | None:
        """Return the tokens of `redraft`; of a tree, those of its first branch."""


class Recorder(Protocol):
    """Turns what a round did into feedback, at once (bandit) or later (full information).

    `reads` names what it wants to see: "overlap" (the overlaps in `Outcome`) and "rows" (drafts with the raw
    logits that they came from). Called like the policy, and what it raises costs no text: it is a fault of
    the policy.
    """

    reads: frozenset[str]

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        """Return the feedback that the rounds of one step make known, in the order in which to learn from it.

        Called once a step, after the commit and before the drafters observe what was committed. A decision
        whose outcome will never be known must come back as a `Feedback` with nothing in it.
        """

    def close(self, request: Request) -> Sequence[Feedback]:
        """Return what was still to be learned from a text that has ended; afterwards nothing is kept of it.

        Called once when the text ends, before the policy's `close`.
        """


@runtime_checkable
class LateRecorder(Recorder, Protocol):
    """A recorder that can leave a part of its work for the time in which the next pass runs."""

    def ask(self, batch: Sequence[RoundRecord], graders: Graders) -> Callable[[], Sequence[Feedback]]:
        """Do what `add` does with drafters and scores, and return a function that does the rest.

        The function returns the feedback of `add`. Called in place of `add` where the target is
        `Asynchronous` and the policy can learn late. The function is called once, before the next round's
        `ask` and before the `close` of any request; it must keep no scores, which hold memory of the device.
        """

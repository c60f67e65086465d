"""The roles of a round, as protocols: any object with these methods can take part. Standard library only.

In the examples, `target` counts upwards in a vocabulary of eight tokens and is sure of it (0.93), `request`
is greedy and holds the text 0 1 2, and `drafter` and `policy` are plain implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, runtime_checkable

from .arms import Arm, Context, Decision
from .constraint import TokenMask as TokenMask
from .drafts import Draft, Job
from .outcomes import Feedback, Grade, Outcome
from .request import Request
from .target import Asynchronous as Asynchronous
from .target import Informed as Informed
from .target import Limited as Limited
from .target import Pieces as Pieces
from .target import Ranked as Ranked
from .target import Scores as Scores
from .target import Target as Target
from .target import TreeReader as TreeReader
from .target import window_of as window_of

# -- the drafter guesses what the target will write --------------------------------------------------------


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

        Called once a round and request, before the policy chooses, if the policy `reads_hints`. 1.0 unless it
        is overridden.

        Examples:
            >>> drafter.hint(request)
            1.0
        """
        return 1.0

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


@dataclass(slots=True)
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


# -- the policy decides each round how to draft ------------------------------------------------------------


@runtime_checkable
class Policy(Protocol):
    """Decides every round and learns from what came of it.

    It sees numbers only: no torch, no clock, and no random generator but the one it is handed. It must be a
    dataclass if a state file is to keep what it learns: fields with `metadata=learned(rule)` are saved and
    merged. `arms` are what it chooses among and never change; with `reads_hints` drafters are asked for their
    hints before each choice. If it has `can_learn_late`, and that is true, it is told of a round after the
    next decision where the target is `Asynchronous`: its learning then takes no time of a round.

    The loop or a host calls it, from one thread at a time, under the loop's lock. Several requests are
    decided before the first of them is learned from, so that whatever belongs to a decision is kept by
    request id. What `choose` raises costs speed and no text: the round is decoded plainly, and reported in
    `Round.fault`.
    """

    arms: tuple[Arm, ...]
    reads_hints: bool = False

    def choose(self, context: Context, rng: Random) -> Decision:
        """Return the arm for the next round of one request: an index into `arms`.

        Called once a round and request, before anyone drafts. An arm of a drafter in `context.unavailable`
        drafts nothing.

        Examples:
            >>> decision = policy.choose(Context(request=0), Random(0))
            >>> policy.arms[decision.arm].name
            'sim:4'
        """

    def learn(self, feedback: Feedback) -> None:
        """What came of one decision, as the policy's recorder put it; does nothing unless it is overridden.

        Called after each round, and before `close` for what came late. A feedback without outcomes, losses
        and windows says that the decision came to nothing. What it raises is reported in `Round.fault`.
        """
        return

    def close(self, request: int) -> None:
        """Forget what belongs to one request, by its id; does nothing unless it is overridden.

        Called once when its text ends, also if no decision was made for it. A parked request may continue
        under the same id: it is then a new text. What it raises is a warning.
        """
        return


@runtime_checkable
class Reader(Protocol):
    """A policy that reads the text before it decides."""

    def open(self, request: int, tokens: Sequence[int]) -> None:
        """The whole text when an answer begins: the prompt, or in a later turn all there is by then.

        Called before the first decision of each answer. The tokens are the request's own list: read them, do
        not change or keep them. What it raises is a warning.
        """


@runtime_checkable
class Planner(Protocol):
    """A policy that looks at all requests of a round before it decides for each of them."""

    def plan(self, contexts: Sequence[Context]) -> None:
        """The requests that are decided next, in this order, in one round.

        Called before their `choose`, where there are two or more. What it raises is reported in
        `Round.fault`; they are decided all the same.
        """


@runtime_checkable
class Rester(Protocol):
    """A policy that may leave out a round of a batch, so that it takes no time where no draft pays."""

    def rests(self, batch_size: int) -> bool:
        """Return whether no request of this round drafts; then none is decided, and nothing is learned.

        Called before all else in a round of two or more requests.
        """


@dataclass(frozen=True, slots=True)
class Values:
    """What a policy holds of its arms at one moment, for displays: no decision depends on it.

    Attributes:
        unit: What `values` are, in words.
        values: One per arm, higher is better; None for an arm of which nothing is known.
        seconds: What a draft of each arm adds to a plain round; None where that is unknown. Empty from a
            policy that measures no seconds.
        price: Tokens that a second is worth, by the kind of place in words; empty without a price.
        plain: Seconds of a target pass without drafts, at the present load; None if unknown.
        matches: By drafter and length of the match in words: draft tokens that were tested, and accepted.
    """

    unit: str
    values: tuple[float | None, ...]
    seconds: tuple[float | None, ...] = ()
    price: Mapping[str, float] = field(default_factory=dict)
    plain: float | None = None
    matches: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)


@runtime_checkable
class Valuer(Protocol):
    """A policy that can say what each arm is worth to it now; the server's page shows it."""

    def values(self, batch: int = 1) -> Values:
        """Return what is known of the arms, where `batch` requests are decoded together.

        Called under the loop's lock, between two rounds, at any time and as often as someone looks: it must
        change nothing. What it raises is a warning, and nothing is shown.
        """


# -- the recorder turns what a round did into feedback for the policy --------------------------------------


@dataclass(slots=True)
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

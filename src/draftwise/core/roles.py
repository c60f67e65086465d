"""The roles of a round, as protocols: whoever has these methods can play. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, runtime_checkable

from .arms import Arm, Context, Decision
from .drafts import Draft, Job, Verdict
from .outcomes import Feedback, Grade, Outcome
from .request import Request


class Scores(Protocol):
    """What the target thinks of one draft. Node -1 is the last committed token.

    Rows stay on their device; each method hands out plain numbers. Nodes are asked in path order, and
    only below nodes that were accepted, so history-dependent processors see each committed prefix once.
    """

    def choice(self, node: int) -> int:
        """The target's own next token after `node`, drawn with the request's uniform of that position."""
        ...

    def prob(self, node: int) -> float:
        """The target's probability of the drafted token `node` after its parent."""
        ...

    def residual(self, node: int) -> int:
        """A token from the target's law after the parent of the rejected `node`, less its draft law."""
        ...

    def logprob(self, node: int, token: int) -> float:
        """Log-probability of `token` after `node` under the raw softmax at temperature 1, in nats."""
        ...

    def chance(self, node: int, token: int) -> float:
        """The target's probability of any `token` after `node`."""
        ...

    def laws(self, nodes: Sequence[int]) -> Any:
        """The target's laws after `nodes`, an opaque handle to one row each; None where they are one-hot."""
        ...

    def overlaps(self) -> Sequence[float]:
        """1 - TV between the raw laws at temperature 1 of target and drafter, for each drafted node.

        A draft without rows picked its tokens for certain, and so does a tree: the target's raw probability
        of each.
        """
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """One request's round, as a recorder gets it.

    `tokens` are those just committed, the last of `request.tokens`; each was written after its node of
    `nodes`.
    """

    request: Request
    decision: Decision
    outcome: Outcome
    draft: Draft
    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    scores: Scores


@dataclass(frozen=True, slots=True)
class GradeJob:
    """Committed tokens to grade a drafter on: `request.tokens[start:]`.

    `probs` are the target's probabilities of these tokens, and `laws` the rows they come from, where they
    are still there (`Scores.laws`). `draft` is the draft that this drafter made at `start` itself, if it did.
    `signals` asks for the stop signals that it saw.
    """

    request: Request
    start: int
    probs: Sequence[float]
    laws: Any = None
    draft: Draft | None = None
    signals: frozenset[str] = frozenset()


@runtime_checkable
class Target(Protocol):
    """The model whose text is written. Invariant between rounds: its cache holds every committed token
    of an open request but the last."""

    vocab_size: int
    max_length: int

    def open(self, request: Request) -> None: ...
    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]: ...
    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None: ...
    def close(self, request: Request) -> None: ...


@runtime_checkable
class Limited(Protocol):
    """A target that cannot verify a draft of every length at once."""

    def reach(self, request: Request) -> int:
        """The longest draft that its next pass can read for this request."""
        ...


def window_of(target: Target) -> int:
    """The tokens that a text may have where it should make sense: those that the target was trained for.

    `max_length` is where the target itself ends; rotary models go on past their window.
    """
    return min(target.max_length, int(getattr(target, "window", target.max_length)))


@runtime_checkable
class Drafter(Protocol):
    """Guesses what the target will write. May be wrong, must be fast.

    One whose guess at a position depends on the text before it alone, such as a model, may also have
    `grade` (see `Grader`); any other is graded by the drafts it would have made.
    """

    def hint(self, request: Request) -> float:
        """A cheap score before drafting, such as a match length; 0 = nothing to offer."""
        ...

    def draft(self, jobs: Sequence[Job]) -> list[Draft]: ...

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """`new` follows what was observed before; the first call brings the prompt."""
        ...

    def close(self, request: Request) -> None: ...


@runtime_checkable
class Waiter(Protocol):
    """A drafter that cannot draft for every request at once: one that waits for the target's hidden states.

    Where it is not ready it counts as unavailable, and an empty draft of its own says nothing about it.
    """

    def ready(self, request: Request) -> bool: ...


@runtime_checkable
class Policy(Protocol):
    """Decides every round and learns from what came of it: numbers only, no torch, no clock, and no
    generator of its own. Its dataclass fields are its saved state."""

    arms: tuple[Arm, ...]
    reads_hints: bool

    def choose(self, context: Context, rng: Random) -> Decision: ...
    def learn(self, feedback: Feedback) -> None: ...
    def close(self, request: int) -> None: ...


@runtime_checkable
class Reader(Protocol):
    """A policy that reads the text before it decides: the prompt, and with each turn all there is by then."""

    def open(self, request: int, tokens: Sequence[int]) -> None: ...


@runtime_checkable
class Grader(Protocol):
    """A drafter that grades itself on committed text, position by position, in one pass."""

    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade for each token of each job, before `observe` brings these tokens."""
        ...


class Graders(Protocol):
    """What a recorder may ask of the drafters; a drafter that fails is out of the request (None).

    `graded_seconds` is the time that `grade` and `guess` have taken so far.
    """

    @property
    def graded_seconds(self) -> float: ...

    def grades_itself(self, name: str) -> bool: ...

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None: ...

    def width(self, name: str) -> int:
        """Branches that a drafter gives its drafts by itself: 1 for chains."""
        ...

    def redraft(self, name: str, request: Request, at: int, arm: Arm) -> Draft | None:
        """What `guess` is made of: the draft, which may be a tree."""
        ...

    def guess(self, name: str, request: Request, at: int, arm: Arm) -> tuple[int, ...] | None:
        """The draft that `name` makes for `arm` where the text is `request.tokens[:at]`, unless drawn."""
        ...


class Recorder(Protocol):
    """Turns what a round did into feedback, at once (bandit) or later (full information).

    `reads` names what it wants to see: "overlap" (the overlaps in `Outcome`) and "rows" (drafts with the rows
    they came from).
    """

    reads: frozenset[str]

    def add(self, batch: Sequence[Seen], graders: Graders) -> Sequence[Feedback]: ...
    def close(self, request: Request) -> Sequence[Feedback]: ...

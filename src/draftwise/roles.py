"""The roles of a round, as protocols: whoever has these methods can play. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from .types import Arm, Context, Decision, Draft, Feedback, Job, Outcome, Request, Verdict


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
class Drafter(Protocol):
    """Guesses what the target will write. May be wrong, must be fast."""

    def hint(self, request: Request) -> float:
        """A cheap score before drafting, such as a match length; 0 = nothing to offer."""
        ...

    def draft(self, jobs: Sequence[Job]) -> list[Draft]: ...

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """`new` was just committed; `request.tokens` does not hold it yet. The first call is the prompt."""
        ...

    def close(self, request: Request) -> None: ...


@runtime_checkable
class Policy(Protocol):
    """Decides every round and learns from what came of it: numbers only, no torch, no clock, and no
    generator of its own. Its dataclass fields are its saved state."""

    arms: tuple[Arm, ...]
    reads_hints: bool

    def choose(self, context: Context, rng: Random) -> Decision: ...
    def learn(self, feedback: Feedback) -> None: ...
    def close(self, request: int) -> None: ...


class Recorder(Protocol):
    """Turns what one round did into feedback, at once (bandit) or later (full information)."""

    def add(self, request: Request, decision: Decision, seen: Outcome) -> Sequence[Feedback]: ...
    def close(self, request: Request) -> Sequence[Feedback]: ...

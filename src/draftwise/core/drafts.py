"""Drafts: asked for, made and verified. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .arms import NEVER, Stop
from .request import Request


@dataclass(frozen=True, slots=True)
class Signals:
    """What stop rules and diagnostics see of one draft position: the raw softmax at temperature 1.

    `entropy` is in nats; `chosen` is the probability of the token that was drafted. Only where a rule reads
    them: `place` counts the output's tokens before the drafted one, `top` holds the largest probabilities, at
    most ten, in falling order, and `hidden` the state that the row was computed from, a vector.
    """

    top1: float
    top2: float
    entropy: float
    chosen: float
    place: int = 0
    top: tuple[float, ...] = ()
    hidden: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens as a tree; parent -1 is the last committed token, and a chain is a thin tree.

    `dist` is an opaque handle to the distributions that the tokens were *sampled* from, one per node,
    and `probs` each token's probability there; a node then has at most one child. `dist` None means that
    the tokens were *picked* (looked up, greedy, top-k): any choice among them is lossless. `rows`, where the
    job asked for them, are the drafter's raw logits that each token came from, one row each.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    dist: Any = None
    signals: tuple[Signals, ...] = ()
    rows: Any = None

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        *,
        probs: Sequence[float] = (),
        dist: Any = None,
        signals: Sequence[Signals] = (),
        rows: Any = None,
    ) -> Draft:
        """A draft in which every token follows the one before it."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(probs), dist, tuple(signals), rows)

    @property
    def is_chain(self) -> bool:
        """True when every node follows the one before it."""
        return self.parents == tuple(range(-1, len(self.tokens) - 1))


NOTHING = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted nodes from the root down, and the target's own token after them.

    The token is `NOTHING` where the last of these nodes ends the text.
    """

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Job:
    """One draft to make: at most `length` tokens for `request`, stopping by `stops`.

    `rows` asks a drafter that has laws to keep its raw logits in the draft, `picked` for its likeliest tokens
    even where the request samples.
    """

    request: Request
    length: int
    stops: tuple[Stop, ...] = (NEVER,)
    width: int = 1
    rows: bool = False
    picked: bool = False

    def stop_at(self, position: int) -> Stop:
        """The rule for draft position `position`, counted from 0."""
        return self.stops[min(position, len(self.stops) - 1)]

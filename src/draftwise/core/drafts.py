"""Drafts: the job, the draft and the verdict. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .arms import NEVER, Stop
from .request import Request


@dataclass(frozen=True, slots=True)
class Signals:
    """Numbers about one draft position, for stop rules and diagnostics: from the raw softmax at temperature
    1.

    `entropy` is in nats; `chosen` is the probability of the drafted token. The other fields are set only if a
    rule reads them: `place` counts the output tokens before the drafted one, `top` holds the largest
    probabilities in descending order (at most ten), and `hidden` is the hidden state (a vector) that the
    logits were computed from.
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
    """Drafted tokens as a tree: parent -1 is the last committed token; a chain is a tree without branches.

    `dist` is an opaque handle to the distributions that the tokens were *sampled* from, one per node, and
    `probs` is each token's probability there; a node then has at most one child. `dist` None means that the
    tokens were *picked* (looked up, greedy, top-k): any choice of tokens is lossless. `rows` holds the
    drafter's raw logits, one row per token, if the job asked for them.
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
        """A draft in which each token follows the previous one."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(probs), dist, tuple(signals), rows)

    @property
    def is_chain(self) -> bool:
        """True when each node follows the previous one."""
        return self.parents == tuple(range(-1, len(self.tokens) - 1))


NOTHING = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted nodes from the root down, and the target's own token after them.

    The token is `NOTHING` if the last accepted node ends the text.
    """

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Job:
    """One draft to make: at most `length` tokens for `request`, stopping by `stops`.

    `rows` asks the drafter to keep its raw logits in the draft, if it has distributions. `picked` asks for
    its most likely tokens even if the request samples.
    """

    request: Request
    length: int
    stops: tuple[Stop, ...] = (NEVER,)
    width: int = 1
    rows: bool = False
    picked: bool = False

    def stop_at(self, position: int) -> Stop:
        """The rule for draft position `position` (from 0)."""
        return self.stops[min(position, len(self.stops) - 1)]

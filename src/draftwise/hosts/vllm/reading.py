"""What a model that drafts inside vLLM has read of each request, and what it must read before it drafts.

vLLM lets its drafter read in every step just what the target read. A drafter that some steps leave out has
holes in its KV cache: it must read those positions first, from the text, and a head also from the target's
hidden states there, which are kept until it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_WAITING = 256  # positions of a request whose hidden states wait to be read


class Span(NamedTuple):
    """Positions `start` to `end` of the request in a row of the batch, to be read in one pass."""

    key: str
    row: int
    start: int
    end: int


@dataclass(slots=True)
class ReadState:
    """One request: the target has read `end` positions, the drafter the first `read` of them.

    `pieces` are hidden states of the latest positions, each with its first position; empty for a drafter
    that reads the text alone. `guesses` are the drafter's most likely tokens, by position in the text.
    """

    prompt: int = 0
    read: int = 0
    end: int = 0
    pieces: list[tuple[int, Any]] = field(default_factory=list)
    guesses: dict[int, int] = field(default_factory=dict)

    def advance(self, start: int, count: int, states: Any = None) -> None:
        """Record that the target read `count` positions from `start` on, which may be read a second time."""
        if self.end != start:
            self.pieces.clear()  # preempted, or without a step of ours between
        self.read, self.end = min(self.read, start), start + count
        if states is not None:
            self.pieces.append((start, states))

    def span(self, *, with_states: bool) -> tuple[int, int]:
        """Return the positions to read next: all that are not read, and the last one always."""
        start = min(self.read, self.end - 1)
        if with_states:
            start = max(start, self.pieces[0][0])
        return start, self.end

    def states(self, start: int, end: int) -> list[Any]:
        """Return the hidden states of positions, in pieces."""
        parts = []
        for first, piece in self.pieces:
            part = piece[max(0, start - first) : max(0, end - first)]
            if len(part):
                parts.append(part)
        return parts

    def set_read(self, end: int) -> None:
        """Record that the drafter has read the positions before `end`; the last one's states are kept."""
        self.read = max(self.read, end)
        while len(self.pieces) > 1 and self.pieces[1][0] < end:
            self.pieces.pop(0)
        if self.pieces and (first := self.pieces[0][0]) < end - 1:
            self.pieces[0] = (
                end - 1,
                self.pieces[0][1][end - 1 - first :].clone(),
            )  # frees the step's others

    @property
    def waiting(self) -> int:
        """Return how many positions' states wait to be read."""
        return self.end - max(self.read, self.pieces[0][0]) if self.pieces else 0


class FilledBlocks:
    """How many leading positions of each block of the KV cache the drafter has read.

    A request that finds its prompt in the cache finds the drafter's keys and values there only as far as an
    earlier request let the drafter read them.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.filled: NDArray[np.int32] = np.zeros(count, dtype=np.int32)

    def write(self, blocks: Sequence[int], start: int, end: int, *, read: bool) -> None:
        """Record positions that the target wrote, or, with `read`, the drafter."""
        for index in range(start // self.size, (end - 1) // self.size + 1):
            block, first = int(blocks[index]), max(0, start - index * self.size)
            filled = int(self.filled[block])
            if not read:
                self.filled[block] = min(filled, first)
            elif filled >= first:
                self.filled[block] = max(filled, min(self.size, end - index * self.size))

    def prefix(self, blocks: Sequence[int], end: int) -> int:
        """Return how many of the first `end` positions the drafter has read without a hole."""
        for index in range(-(-end // self.size)):
            filled = int(self.filled[int(blocks[index])])
            if filled < self.size:
                return min(end, index * self.size + filled)
        return end

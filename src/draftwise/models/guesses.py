"""The passes of a draft after its first: one token each."""

from __future__ import annotations

from time import perf_counter

from torch import Tensor

from .runner import Rows


def guess(rows: Rows, row: int, token: int) -> Tensor:
    """`rows.feed` for one token of one row that may be taken back; shape (1, 1, vocabulary).

    Where passes are compiled, only what differs from one token to the next is prepared.
    """
    start = rows.held[row]
    most = min(rows.cache.plan.slots, len(rows.positions), rows.masks.all_of, rows.max_length)
    if rows.graph is None or rows.watchers or start >= most:
        return rows.feed(row, [[token]], 1, guesses=True)
    begun = perf_counter()
    rows.cache.schedule(row, [start], 1, even=True, rows=len(rows.keys), slots=0)
    logits = rows.graph.step(rows, token)
    rows.seconds += perf_counter() - begun
    rows.held[row] += 1
    return logits

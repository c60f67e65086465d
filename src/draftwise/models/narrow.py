"""The passes of a round: a few tokens of one text, with little to prepare where passes are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor

from .masks import BANDED
from .runner import Rows


def narrow(
    rows: Rows, row: int, tokens: Sequence[int], keep: int, *, slots: int = 0, guesses: bool = False
) -> Tensor:
    """`rows.feed` for one chain of tokens of one row.

    Where passes are compiled, only what differs from one pass to the next is prepared, outside of
    `torch.inference_mode`, since entering it would take as long. Returns the logits of the last `keep`
    tokens, shape (1, keep, vocabulary).
    """
    start, width = rows.held[row], len(tokens)
    most = min(rows.cache.plan.slots, rows.positions.shape[0], rows.masks.all_of, rows.max_length, BANDED[1])
    if rows.graph is None or rows.watchers or start + width > most or width > BANDED[0]:
        with torch.inference_mode():
            return rows.feed(row, [tokens], keep, slots=slots, guesses=guesses)
    begun = perf_counter()
    rows.cache.schedule(row, [start], width, even=True, rows=len(rows.keys), slots=0)
    logits = rows.graph.step(rows, tokens, keep)
    rows.seconds += perf_counter() - begun
    rows.held[row] += width
    return logits

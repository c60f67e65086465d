"""The KV cache by itself: where a pass writes, what it returns, and how much is allocated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwise.models.runner.cache import RowCache, RowLayer

CPU = torch.device("cpu")


def states(rows: int, width: int, start: float = 0.0) -> Tensor:
    """Keys of shape (rows, 2 heads, width, 3); all numbers differ."""
    return start + torch.arange(rows * 2 * width * 3, dtype=torch.float64).reshape(rows, 2, width, 3)


def planned(starts: list[int], width: int, *, slots: int = 0, tree: bool = False) -> RowCache:
    """A cache of one layer, with a pass planned for rows that already hold `starts` tokens."""
    cache = RowCache(1)
    even = len(set(starts)) == 1
    cache.schedule(0, starts, width, even=even, rows=len(starts), slots=slots, tree=tree)
    if not even:
        cache.plan.place(np.add.outer(starts, np.arange(width)))
    return cache


def test_other_states_are_copied_only_when_the_cache_grows() -> None:
    cache = planned([0], 300, slots=640)
    layer: RowLayer = cache._rows[0]
    layer.keep("index", torch.ones(1, 2, 300, 3))
    held = layer.more["index"]
    cache.schedule(0, [300], 2, even=True, rows=1, slots=0)
    layer.keep("index", torch.ones(1, 2, 2, 3))
    assert layer.more["index"] is held
    cache.schedule(0, [302, 302], 2, even=True, rows=2, slots=0)  # one more row, as many slots
    got = layer.keep("index", torch.full((2, 2, 2, 3), 2.0))
    assert got.shape == (2, 2, 304, 3)
    assert bool((got[1, :, 302:] == 2).all()) and bool((got[0, :, :302] == 1).all())


def test_memory_doubles_up_to_what_the_texts_need() -> None:
    cache = planned([0], 300, slots=2000)
    assert cache.plan.slots == 640
    cache.schedule(0, [640], 1, even=True, rows=1, slots=0)  # 0: the need is unchanged
    assert cache.plan.slots == 1344
    cache.schedule(0, [1344], 1, even=True, rows=1, slots=0)
    assert cache.plan.slots == 2048


@pytest.mark.parametrize(
    ("starts", "tree", "counted"),
    [([2, 2], False, False), ([2, 3], False, True), ([2, 2], True, True)],
)
def test_a_layer_that_counts_is_noticed(starts: list[int], tree: bool, counted: bool) -> None:
    """Where all rows have one length, the cache's length is the position, and counting does no harm."""
    cache = planned(starts, 1, tree=tree)
    assert cache.get_seq_length() == max(starts) and not cache.counted
    cache.get_seq_length(0)
    assert cache.counted == counted

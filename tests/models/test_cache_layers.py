"""The KV cache by itself: where a pass writes, what it returns, and how much is allocated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwise.models.runner.cache import Plan, RowCache, RowLayer

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


def test_a_new_cache_is_empty() -> None:
    cache = RowCache(1)
    assert cache.get_seq_length() == 0 and cache.bytes == 0
    assert cache.get_mask_sizes(0, 0) == (0, 0)
    assert cache.plan.slots == 0 and cache.plan.capacity == 1


def test_a_plan_has_no_other_fields() -> None:
    plan: Any = Plan()
    with pytest.raises(AttributeError):
        plan.widht = 3  # a misspelt field would leave the width as it was


def test_a_pass_returns_every_visible_slot_of_its_rows() -> None:
    cache = planned([0, 0], 3)
    keys, values = cache.update(states(2, 3), states(2, 3, 100), 0)
    torch.testing.assert_close(keys, states(2, 3))
    torch.testing.assert_close(values, states(2, 3, 100))
    cache.schedule(0, [2, 2], 1, even=True, rows=2, slots=0)  # rolls back one token of each row
    keys, values = cache.update(states(2, 1, 50), states(2, 1, 150), 0)
    torch.testing.assert_close(keys, torch.cat([states(2, 3)[:, :, :2], states(2, 1, 50)], 2))
    torch.testing.assert_close(values, torch.cat([states(2, 3, 100)[:, :, :2], states(2, 1, 150)], 2))


def test_rows_of_different_lengths_write_at_their_own_ends() -> None:
    cache = planned([0, 2], 2)
    keys, values = cache.update(states(2, 2), states(2, 2, 100), 0)
    assert keys.shape == values.shape == (2, 2, 4, 3)
    torch.testing.assert_close(keys[0, :, :2], states(2, 2)[0])
    torch.testing.assert_close(keys[1, :, 2:], states(2, 2)[1])
    torch.testing.assert_close(values[1, :, 2:], states(2, 2, 100)[1])


def test_rows_of_different_lengths_may_begin_in_the_middle() -> None:
    cache = planned([3, 3, 3], 1)
    cache.update(states(3, 1), states(3, 1), 0)
    before = cache._rows[0].keys.clone()
    cache.schedule(1, [1, 2], 1, even=False, rows=3, slots=0)
    cache.plan.place(np.array([[1], [2]]))
    keys, _ = cache.update(states(2, 1, 50), states(2, 1, 50), 0)
    torch.testing.assert_close(keys[0, :, 1:2], states(2, 1, 50)[0])
    torch.testing.assert_close(keys[1, :, 2:3], states(2, 1, 50)[1])
    torch.testing.assert_close(cache._rows[0].keys[0], before[0])


def test_the_states_of_block_sparse_attention_keep_their_shape() -> None:
    cache = planned([0, 0], 3)
    layer: RowLayer = cache._rows[0]
    torch.testing.assert_close(layer.update_index(states(2, 3)), states(2, 3))
    cache.schedule(0, [3, 3], 1, even=True, rows=2, slots=0)
    got = layer.update_index(states(2, 1, 50))
    torch.testing.assert_close(got, torch.cat([states(2, 3), states(2, 1, 50)], 2))


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


def test_a_row_is_copied_to_one_that_no_pass_has_seen() -> None:
    cache = planned([0], 3)
    cache.update(states(1, 3), states(1, 3, 100), 0)
    cache.copy_row(0, 1, 2)
    assert cache.plan.capacity == 2
    keys = cache._rows[0].keys
    torch.testing.assert_close(keys[1, :, :2], keys[0, :, :2])
    assert not keys[1, :, 2:].any()


def test_rows_are_exchanged_and_slots_are_moved() -> None:
    cache = planned([0, 0], 3)
    with torch.inference_mode():  # as in a pass; what it wrote may be changed outside, too
        cache.update(states(2, 3), states(2, 3, 100), 0)
    layer: RowLayer = cache._rows[0]
    before = layer.values.clone()
    cache.swap_rows(0, 1, 2)
    torch.testing.assert_close(layer.values[0, :, :2], before[1, :, :2])
    torch.testing.assert_close(layer.values[1, :, :2], before[0, :, :2])
    torch.testing.assert_close(layer.values[:, :, 2:], before[:, :, 2:])
    before = layer.keys.clone()
    cache.move([(1, 1, 0), (1, 2, 1)], CPU)
    torch.testing.assert_close(layer.keys[1, :, :2], before[1, :, 1:3])
    torch.testing.assert_close(layer.keys[0], before[0])


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


def test_a_new_cache_is_not_counted() -> None:
    cache = RowCache(1)
    assert cache.get_seq_length(0) == 0 and not cache.counted

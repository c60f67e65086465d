"""Weights in huge pages: where they are, what is moved, and that nothing else changes."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from draftwise.models import huge_pages
from draftwise.models.huge_pages import ALIGNED, NOW, Room, merged, use_huge_pages

SIZE = 1 << 21


def _huge(address: int) -> int:
    """The bytes in huge pages of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such mapping")


@pytest.fixture
def pages() -> int:
    """The size of a huge page, on a system that gives one now."""
    size = huge_pages.page_size()
    if size:
        one = mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            one.write(bytes(2 * size))
            one.madvise(NOW)
            return size
        except OSError:
            pass
        finally:
            one.close()
    pytest.skip("this system has no huge pages")


def test_ranges_of_whole_pages_are_merged_in_order() -> None:
    parts = [(9 * SIZE, 9 * SIZE + 1), (5, SIZE + 1), (2 * SIZE, 2 * SIZE), (SIZE + 2, SIZE + 9)]
    assert merged(parts, SIZE) == [(0, 2 * SIZE), (9 * SIZE, 10 * SIZE)]


def test_ranges_that_touch_are_one() -> None:
    assert merged([(0, SIZE), (SIZE, 2 * SIZE)], SIZE) == [(0, 2 * SIZE)]


@pytest.mark.parametrize("kind", ["parameter", "buffer", "attribute"])
def test_weights_move_and_keep_their_addresses_and_values(pages: int, kind: str) -> None:
    memory = mmap.mmap(-1, 5 * pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not used before
    weight = torch.frombuffer(memory, dtype=torch.float32, count=pages).copy_(torch.randn(pages))
    values, address = weight.clone(), weight.data_ptr()
    model: Any = nn.Module()
    if kind == "buffer":
        model.register_buffer("weight", weight)
    else:
        model.weight = nn.Parameter(weight) if kind == "parameter" else weight
    bytes_before = _huge(address)
    assert use_huge_pages(model) >= 4 * pages
    assert _huge(address) > bytes_before
    assert model.weight.data_ptr() == address and torch.equal(model.weight, values)


def test_without_huge_pages_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "page_size", lambda: 0)
    monkeypatch.setattr(huge_pages, "_advise", lambda: pytest.fail("asked"))
    assert use_huge_pages(nn.Linear(1024, 1024)) == 0


def test_weights_without_memory_are_left_out(pages: int) -> None:
    model = nn.Linear(1024, 1024, device="meta")
    model.register_buffer("empty", torch.empty(0))
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    assert use_huge_pages(model) == 0


def test_an_embedding_moves_only_if_a_product_reads_it(pages: int) -> None:
    model = nn.Sequential(nn.Embedding(pages // 256, 256))
    assert use_huge_pages(model) == 0
    head = nn.Linear(256, pages // 256, bias=False)
    head.weight = model[0].weight  # type: ignore[assignment]
    model.append(head)
    assert use_huge_pages(model) >= 4 * pages


def test_copies_lie_in_huge_pages_from_the_start(pages: int) -> None:
    room = Room(8 * pages)
    given = [torch.randn(3, pages // 4 + 1), torch.randn(pages).bfloat16(), torch.randn(7).double()]
    taken = [room.take(tensor) for tensor in given]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(given, taken, strict=True))
    assert all(tensor.data_ptr() % ALIGNED == 0 and tensor.is_contiguous() for tensor in taken)
    assert {tensor.untyped_storage().data_ptr() for tensor in taken} == {room.bytes.data_ptr()}
    assert _huge(taken[0].data_ptr() + pages) >= pages


def test_what_finds_no_room_stays_where_it_is() -> None:
    room, large, sparse = Room(100), torch.randn(26), torch.eye(3).to_sparse()
    assert room.take(large) is large and room.take(sparse) is sparse
    assert room.take(large[:25]) is not large and room.used > 100
    assert room.take(small := torch.ones(1)) is small

"""Weights in huge pages.

A pass on a CPU reads all weights. The processor looks up the address of every page that it reads: in pages
of 4 KiB that takes up to half of the memory's speed, in those of 2 MiB nearly nothing. Linux gives such pages
to a process that asks for them: for memory that it will write, or already has, whose addresses stay.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from logging import getLogger
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

LATER, NOW = 14, 25  # Linux's MADV_HUGEPAGE and MADV_COLLAPSE
SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
ALIGNED = 64  # bytes
LOG = getLogger(__name__)


@cache
def page_size() -> int:
    """Return the bytes of a huge page; 0 where there are none."""
    try:
        return int(SIZE.read_text()) if sys.platform == "linux" else 0
    except (OSError, ValueError):
        return 0


class Room:
    """Memory for copies of tensors, in huge pages from the start: to move them later takes more time."""

    def __init__(self, size: int) -> None:
        """Take memory for `size` bytes, which includes `ALIGNED` more for each tensor that it will hold."""
        self.bytes, self.used = _new_memory(size), 0

    def take(self, tensor: Tensor) -> Tensor:
        """Return a copy in this memory; without room for it, or of another kind, the tensor itself."""
        if not _is_plain(tensor) or self.used + tensor.nbytes > len(self.bytes):
            return tensor
        end = self.used + tensor.nbytes
        copy = self.bytes[self.used : end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self.used = -(-end // ALIGNED) * ALIGNED
        return copy


def use_huge_pages(model: nn.Module) -> int:
    """Move a model's weights that are in a CPU's memory into huge pages, as many as the system has free.

    Returns:
        The bytes of the pages that were asked for. Weights that are read from a file's pages stay there.
    """
    start, size = perf_counter(), page_size()
    ranges = merged(_memory_of(model), size) if size else []
    for first, last in ranges:
        if _advise()(first, last - first, NOW):  # before Linux 6.1, or without enough free pages
            _advise()(first, last - first, LATER)
    total = sum(last - first for first, last in ranges)
    if total:
        seconds = perf_counter() - start
        LOG.info("%s: huge pages for %.0f MB in %.2f s", type(model).__name__, total / 1e6, seconds)
    return total


def release_freed() -> None:
    """Give the system back what was freed, of which glibc keeps much."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _new_memory(size: int) -> Tensor:
    if not page_size():
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # pages are small then
        memory.madvise(LATER)
    return torch.frombuffer(memory, dtype=torch.uint8)


@cache
def _advise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _memory_of(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Where parameters, buffers and tensors that are attributes (packed weights) begin and end.

    But for those of embeddings alone: a pass reads a few of their rows.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            continue
        for value in chain(module.parameters(False), module.buffers(False), vars(module).values()):
            if isinstance(value, Tensor) and _is_plain(value):
                storage = value.untyped_storage()
                yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor.data) is Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided


def merged(ranges: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the ranges of whole pages of this size that hold the given ranges, in order."""
    result: list[tuple[int, int]] = []
    for first, last in sorted({(a // size * size, -(-b // size) * size) for a, b in ranges if b > a}):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result

"""What the machine can do at most: bytes read from memory and multiplications, a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

READ = 1 << 30  # bytes: many times the last-level cache
TIMES = 5
SIDE = 2048  # of the square matrices


Limits = dict[str, float]
"""Bytes a second by `one` thread and by `all`, and `flops`, floating-point operations a second by all."""


def limits(dtype: torch.dtype, *, size: int = READ, side: int = SIDE, times: int = TIMES) -> Limits:
    """The limits of this machine for weights of this type; the best of some runs, since nothing but other
    processes' work changes them."""
    threads = torch.get_num_threads()
    with torch.inference_mode():
        buffer = torch.ones(size // 4).view(-1, 4096)
        with _threads(1):
            one = read(buffer, times)
        everything = max(one, read(buffer, times)) if threads > 1 else one
        del buffer
        return {"one": one, "all": everything, "flops": multiply(dtype, side, times)}


def read(buffer: torch.Tensor, times: int) -> float:
    """Bytes a second of the fastest reading: a sum as in STREAM, or a product with a vector as in a pass."""
    vector = torch.ones(buffer.shape[1])
    ways: list[Callable[[], object]] = [buffer.sum, lambda: torch.mv(buffer, vector)]
    return buffer.numel() * buffer.element_size() / min(_fastest(way, times) for way in ways)


def multiply(dtype: torch.dtype, side: int, times: int) -> float:
    """Floating-point operations a second of a product of two square matrices."""
    matrix = torch.full((side, side), 0.5, dtype=dtype)
    return 2 * side**3 / _fastest(lambda: matrix @ matrix, max(2, times // 2))


def _fastest(work: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        began = perf_counter()
        work()
        found.append(perf_counter() - began)
    return min(found)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

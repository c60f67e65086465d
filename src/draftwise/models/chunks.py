"""State-space layers that compute a pass in chunks, padded to a whole number of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

LEAST = 16  # tokens of a chunk: kernels for GPUs have no smaller ones


def chunked(model: nn.Module) -> dict[Any, int]:
    """The modules of a model that have a `chunk_size`, and it."""
    sizes: dict[Any, Any] = {module: getattr(module, "chunk_size", None) for module in model.modules()}
    return {module: size for module, size in sizes.items() if type(size) is int and size > LEAST}


@contextmanager
def short(modules: dict[Any, int], width: int) -> Iterator[None]:
    """Within it, chunks are no longer than a pass of `width` tokens needs.

    The recurrence does not depend on how it is cut; a few tokens padded to a chunk of 256 are mostly padding.
    """
    size = max(LEAST, 1 << (width - 1).bit_length())
    try:
        for module, own in modules.items():
            module.chunk_size = min(size, own)
        yield
    finally:
        for module, own in modules.items():
            module.chunk_size = own

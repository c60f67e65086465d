"""Chooses by timing whether a graph computes attention by our own kernel or by PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..attention import SDPA, attention
from ..native import kernels as native
from ..verdicts import machine
from ..weights import timing

TOTAL = 384  # keys of the timed passes
MOST = 1 << 26  # bytes of keys and values in a timed pass
OURS, THEIRS = "own", "pytorch"

Layer = tuple[int, int, int, int, int]  # of the cache: index; heads and head size of the keys, of the values


@torch.inference_mode()
def own_attention(model: Any, layers: Sequence[Layer], *, exact: bool = False) -> bool:
    """Whether attention over the cache's layers is faster by our kernel on this machine.

    Saved as a choice of layouts is. It is false where the kernel cannot compute what the model asks for, else
    true with `exact`: the kernel computes the same bits for a token in every pass.
    """
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", 0)
    if config._attn_implementation != SDPA or not isinstance(heads, int):
        return False
    fits = all(keys == values and heads % keys == 0 for _, keys, _, values, _ in layers)
    sizes = {(keys, size, other) for _, keys, size, _, other in layers}
    if not fits or not sizes or any(n % native.UNIT for _, *both in sizes for n in both):
        return False
    if native.attention_kernel(model.dtype) is None:
        return False
    if exact:
        return True
    here = machine(torch.get_num_threads())
    key = f"{here} {model.dtype} attention of {heads} heads, {sorted(sizes)}, after others"
    given = model.dtype, heads, sorted(sizes), len(layers), key
    return timing.decided(key, (THEIRS, OURS), lambda: _timed(*given), OURS) == OURS


def _timed(
    dtype: torch.dtype, heads: int, sizes: Sequence[tuple[int, int, int]], layers: int, key: str
) -> str:
    attend = native.attention_kernel(dtype)
    assert attend is not None
    room = sum(dtype.itemsize * TOTAL * keys * (size + other) for keys, size, other in sizes)
    held = [
        (torch.rand(1, keys, TOTAL, size).to(dtype), torch.rand(1, keys, TOTAL, other).to(dtype))
        for _ in range(max(1, min(layers, MOST // room)))
        for keys, size, other in sizes
    ]
    queries = {
        (width, size): torch.rand(1, width, heads, size).to(dtype).transpose(1, 2)
        for width in timing.WIDTHS
        for _, size, _ in sizes
    }
    masks = {width: torch.zeros(1, 1, width, TOTAL, dtype=dtype) for width in timing.WIDTHS}

    def theirs(width: int) -> None:
        for keys, values in held:
            single = width == 1 and dtype == torch.bfloat16
            attention(queries[width, keys.shape[3]], keys, values, masks[width], scale=1.0, single=single)

    def ours(width: int) -> None:
        for keys, values in held:
            native.attention(attend, queries[width, keys.shape[3]], keys, values, masks[width], 1.0)

    return timing.compared(theirs, ours, key, (THEIRS, OURS))

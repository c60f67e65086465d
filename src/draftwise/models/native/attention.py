"""Attention of a few tokens over many keys, by a kernel of our own."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from .library import LOG, library

NEAR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # what rounding explains
UNIT = 16  # the size of a head's vectors is a multiple of it

Attend: TypeAlias = Callable[[Any], None]


class Call(Structure):
    """The arguments of the kernel, as in `attention.h`."""

    _fields_ = (
        *((name, c_void_p) for name in ("query", "key", "value", "mask", "out")),
        *(
            (name, c_int64)
            for name in ("rows", "shared", "groups", "width", "total", "key_size", "value_size")
        ),
        *((f"{name}_step", c_int64 * 3) for name in ("query", "key", "value")),
        ("mask_step", c_int64 * 2),
        ("scale", c_float),
        ("half", c_int32),
    )


@cache
def kernel(dtype: torch.dtype) -> Attend | None:
    """The kernel, if this machine can make one that computes what PyTorch does in this dtype."""
    made = library()
    if made is None or dtype not in NEAR:
        return None
    function = made.draftwise_attention
    function.argtypes, function.restype = [POINTER(Call)], None
    attend = cast("Attend", function)
    if wrong := fault(attend, dtype):
        LOG.info("no kernel of our own for attention in %s: %s", dtype, wrong)
        return None
    return attend


def attention(
    attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Attention of float32 or bfloat16, shape (rows, width, heads, value size).

    `query` has the shape (rows, heads, width, size), `key` and `value` (rows, heads or fewer, slots, size),
    and `mask` (rows, 1, width, slots). The last dimension of each
    lies side by side; sizes are multiples of 16.
    """
    rows, heads, width, size = query.shape
    shared, total, value_size = key.shape[1], key.shape[2], value.shape[3]
    out = query.new_empty(rows, width, heads, value_size)
    call = Call(
        *(t.data_ptr() for t in (query, key, value, mask, out)),
        *(rows, shared, heads // shared, width, total, size, value_size),
        *((c_int64 * 3)(*t.stride()[:3]) for t in (query, key, value)),
        (c_int64 * 2)(mask.stride(0), mask.stride(2)),
        scale,
        query.dtype == torch.bfloat16,
    )
    attend(byref(call))
    return out


def fault(attend: Attend, dtype: torch.dtype) -> str:
    """What is wrong with a kernel, compared with PyTorch, in a few words.

    Tried are heads that share keys, several rows, every tile, and tokens alone or among others.
    """
    rng = torch.Generator().manual_seed(0)
    for size, value_size, shared, total in ((16, 48, 1, 15), (64, 64, 2, 40), (128, 128, 1, 21)):
        query, key, value = (
            (2.0 * torch.rand(2, heads, slots, n, generator=rng) - 1.0).to(dtype)
            for heads, slots, n in ((2, 15, size), (shared, total, size), (shared, total, value_size))
        )
        hidden = torch.full((15, total), float("-inf"), dtype=dtype).triu(total - 14)
        hidden = hidden.expand(2, 1, -1, -1).contiguous()
        more = 2 // shared
        wanted = functional.scaled_dot_product_attention(
            query.double(),
            key.repeat_interleave(more, 1).double(),
            value.repeat_interleave(more, 1).double(),
            hidden.double(),
            scale=0.3,
        ).transpose(1, 2)
        for width in range(1, 16):
            some = query[:, :, :width].contiguous()
            seen = total - 15 + width
            found = attention(
                attend, some, key[:, :, :seen], value[:, :, :seen], hidden[:, :, :width, :seen], 0.3
            )
            if not torch.allclose(found.double(), wanted[:, :width], rtol=NEAR[dtype], atol=NEAR[dtype]):
                return "it computes something else than PyTorch"
            whole = attention(attend, some, key, value, hidden[:, :, :width], 0.3)
            alone = attention(attend, some[:, :, -1:], key, value, hidden[:, :, width - 1 : width], 0.3)
            if not (torch.equal(found, whole) and torch.equal(found[:, -1:], alone)):
                return "its results depend on the number of tokens"
    return ""

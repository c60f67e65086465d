"""Products with weights in panels, which hold some outputs side by side, by a kernel of our own."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from .library import LOG, library

NAMES = {torch.float32: "draftwise_linear_float32", torch.bfloat16: "draftwise_linear_bfloat16"}

Product: TypeAlias = Callable[[int, int, int | None, int, int, int, int], None]
"""Addresses of the input, the weights, the bias or None, and the output; tokens, outputs and inputs."""


@cache
def kernel(dtype: torch.dtype) -> Product | None:
    """The kernel for this dtype, if this machine can make one that computes what PyTorch does."""
    made = library()
    if made is None or dtype not in NAMES:
        return None
    function = made[NAMES[dtype]]
    function.argtypes, function.restype = [c_void_p] * 4 + [c_int64] * 3, None
    product = cast("Product", function)
    if wrong := fault(product, dtype):
        LOG.info("no kernel of our own for linear layers in %s: %s", dtype, wrong)
        return None
    return product


def supports(weight: Tensor) -> bool:
    """Whether a weight can be packed; bfloat16 is multiplied by pairs of inputs."""
    even = weight.dtype == torch.float32 or weight.shape[-1:].numel() % 2 == 0
    return weight.device.type == "cpu" and even and kernel(weight.dtype) is not None


def packed_shape(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The shape of a packed weight."""
    made = library()
    assert made is not None
    size = int(made.draftwise_panel())
    panels = -(-outputs // size)
    return (panels, inputs, size) if dtype == torch.float32 else (panels, inputs // 2, size, 2)


def pack(weight: Tensor) -> Tensor:
    """A weight of shape (out, in) as panels of outputs, filled up with zeros; bfloat16 by pairs of inputs."""
    outputs, inputs = weight.shape
    panels, steps, size, *pair = packed_shape(outputs, inputs, weight.dtype)
    rows = functional.pad(weight, (0, 0, 0, panels * size - outputs))
    return rows.view(panels, size, steps, *pair).transpose(1, 2).contiguous()


def linear(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, for x of shape (..., in); `shape` has that of the weight."""
    product, x = kernel(x.dtype), x.contiguous()
    assert product is not None and x.dtype == packed.dtype  # what is packed was packed for it
    outputs, inputs = shape.shape
    y = x.new_empty(*x.shape[:-1], outputs)
    added = None if bias is None else bias.data_ptr()
    product(x.data_ptr(), packed.data_ptr(), added, y.data_ptr(), x.numel() // inputs, outputs, inputs)
    return y


def fault(product: Product, dtype: torch.dtype) -> str:
    """What is wrong with a kernel, compared with PyTorch, in a few words.

    Tried are shapes that fill no panel, every tile, and more inputs than are multiplied at a time.
    """
    rng = torch.Generator().manual_seed(0)  # leaves the user's own random generator unchanged
    near = 1e-5 if dtype == torch.float32 else 1e-2
    for outputs, inputs in ((1, 2), (37, 18), (200, 64), (40, 1100)):
        shapes = (26, inputs), (outputs, inputs), (outputs,)
        x, weight, bias = ((torch.rand(*shape, generator=rng) - 0.5).to(dtype) for shape in shapes)
        packed, wanted = pack(weight), functional.linear(x.double(), weight.double(), bias.double())
        rows = []
        for tokens in range(1, len(x) + 1):
            y = torch.empty(tokens, outputs, dtype=dtype)
            at, weights, added, out = (t.data_ptr() for t in (x, packed, bias, y))
            product(at, weights, added, out, tokens, outputs, inputs)
            if not torch.allclose(y.double(), wanted[:tokens], rtol=near, atol=near):
                return "it computes something else than PyTorch"
            rows.append(y[0])
        if not all(torch.equal(row, rows[0]) for row in rows):
            return "its results depend on the number of tokens"
    return ""

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

Product: TypeAlias = Callable[[int, int, int | None, int, int, int, int], None]
"""Addresses of the input, the weights, the bias or None, and the output; tokens, outputs and inputs."""


@cache
def kernel() -> Product | None:
    """The kernel, if this machine can make one that computes what PyTorch does."""
    made = library()
    if made is None:
        return None
    function = made.draftwise_linear
    function.argtypes, function.restype = [c_void_p] * 4 + [c_int64] * 3, None
    product = cast("Product", function)
    if wrong := fault(product):
        LOG.info("no kernel of our own for linear layers: %s", wrong)
        return None
    return product


def panel() -> int:
    """The outputs of a panel."""
    made = library()
    assert made is not None
    return int(made.draftwise_panel())


def pack(weight: Tensor) -> Tensor:
    """A weight of shape (out, in) as (panels, in, outputs of a panel), filled up with zeros."""
    outputs, inputs = weight.shape
    size = panel()
    rows = functional.pad(weight, (0, 0, 0, -outputs % size))
    return rows.view(-1, size, inputs).transpose(1, 2).contiguous()


def linear(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, for x of shape (..., in); `shape` has that of the weight."""
    product, x = kernel(), x.contiguous()
    assert product is not None  # what is packed was packed for it
    outputs, inputs = shape.shape
    y = x.new_empty(*x.shape[:-1], outputs)
    added = None if bias is None else bias.data_ptr()
    product(x.data_ptr(), packed.data_ptr(), added, y.data_ptr(), x.numel() // inputs, outputs, inputs)
    return y


def fault(product: Product) -> str:
    """What is wrong with a kernel, compared with PyTorch, in a few words.

    Tried are shapes that fill no panel, every tile, and more inputs than are multiplied at a time.
    """
    rng = torch.Generator().manual_seed(0)  # leaves the user's own random generator unchanged
    for outputs, inputs in ((1, 1), (37, 19), (200, 64), (40, 1100)):
        shapes = (26, inputs), (outputs, inputs), (outputs,)
        x, weight, bias = (torch.rand(*shape, generator=rng) - 0.5 for shape in shapes)
        packed, wanted = pack(weight), functional.linear(x.double(), weight.double(), bias.double())
        rows = []
        for tokens in range(1, len(x) + 1):
            y = torch.empty(tokens, outputs)
            at, weights, added, out = (t.data_ptr() for t in (x, packed, bias, y))
            product(at, weights, added, out, tokens, outputs, inputs)
            if not torch.allclose(y.double(), wanted[:tokens], rtol=1e-5, atol=1e-5):
                return "it computes something else than PyTorch"
            rows.append(y[0])
        if not all(torch.equal(row, rows[0]) for row in rows):
            return "its results depend on the number of tokens"
    return ""

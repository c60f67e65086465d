"""Products with packed weights that TorchInductor cannot express by itself, for the compiling process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._inductor import mkldnn_ir
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering
from torch._inductor.utils import sympy_product

from ..weights.layouts import KERNELS

Product: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


@torch.library.custom_op("draftwise::mkl_linear", mutates_args=())
def mkl_linear(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """The product with a weight in MKL's layout; the graph has MKL's own call in its place.

    PyTorch's operator takes the number of tokens as a constant, and would fix the width of the graph.
    """
    raise NotImplementedError("only for tracing")


@mkl_linear.register_fake
def _(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], shape.shape[0])


@torch.library.custom_op("draftwise::panel_linear", mutates_args=())
def panel_linear(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """The product with a weight in panels; the graph calls our own library (`native/linear.cpp`)."""
    raise NotImplementedError("only for tracing")


@panel_linear.register_fake
def _(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], shape.shape[0])


def _by_panels(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = panel_linear(x.contiguous(), packed, shape, bias)
    return y


@torch.library.custom_op("draftwise::head_attention", mutates_args=())
def head_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention, shape (rows, width, heads, size); the graph calls our library (`native/attention.cpp`)."""
    raise NotImplementedError("only for tracing")


@head_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    rows, heads, width, _ = query.shape
    return query.new_empty(rows, width, heads, value.shape[3])


PRODUCTS: dict[str, Product] = {"mkl": mkl_linear} | dict.fromkeys(KERNELS, _by_panels)
SHIMS = {
    torch.ops.draftwise.panel_linear.default: [
        "AOTITorchError aoti_torch_cpu_panel_linear(AtenTensorHandle x, AtenTensorHandle packed, "
        "AtenTensorHandle shape, AtenTensorHandle* bias, AtenTensorHandle* result)"
    ],
    torch.ops.draftwise.head_attention.default: [
        "AOTITorchError aoti_torch_cpu_head_attention(AtenTensorHandle query, AtenTensorHandle key, "
        "AtenTensorHandle value, AtenTensorHandle mask, double scale, AtenTensorHandle* result)"
    ],
}
"""The C functions of our library that a graph calls, by operator."""


@register_lowering(torch.ops.draftwise.mkl_linear.default, type_promotion_kind=None)
def _lowered(x: Any, packed: Any, shape: Any, bias: Any) -> Any:
    tokens = sympy_product(x.get_size()[:-1])
    kernel: Any = mkldnn_ir.MKLPackedLinear
    return TensorBox.create(kernel.create(x, packed, shape, bias, tokens))

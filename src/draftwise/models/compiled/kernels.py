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

from ..weights.layouts import PANELS

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
    """The product with a weight in panels; the graph calls our own library (`weights/panels.cpp`)."""
    raise NotImplementedError("only for tracing")


@panel_linear.register_fake
def _(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], shape.shape[0])


def _by_panels(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = panel_linear(x.contiguous(), packed, shape, bias)
    return y


PRODUCTS: dict[str, Product] = {"mkl": mkl_linear, PANELS: _by_panels}
SHIM = (
    "AOTITorchError aoti_torch_cpu_panel_linear(AtenTensorHandle x, AtenTensorHandle packed, "
    "AtenTensorHandle shape, AtenTensorHandle* bias, AtenTensorHandle* result)"
)


@register_lowering(torch.ops.draftwise.mkl_linear.default, type_promotion_kind=None)
def _lowered(x: Any, packed: Any, shape: Any, bias: Any) -> Any:
    tokens = sympy_product(x.get_size()[:-1])
    kernel: Any = mkldnn_ir.MKLPackedLinear
    return TensorBox.create(kernel.create(x, packed, shape, bias, tokens))

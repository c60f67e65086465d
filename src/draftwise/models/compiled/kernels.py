"""Products with packed weights that TorchInductor cannot express by itself, for the compiling process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._inductor import mkldnn_ir
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering
from torch._inductor.utils import sympy_product


@torch.library.custom_op("draftwise::mkl_linear", mutates_args=())
def mkl_linear(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """The product with a weight in MKL's layout; the graph has MKL's own call in its place.

    PyTorch's operator takes the number of tokens as a constant, and would fix the width of the graph.
    """
    raise NotImplementedError("only for tracing")


@mkl_linear.register_fake
def _(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], shape.shape[0])


@register_lowering(torch.ops.draftwise.mkl_linear.default, type_promotion_kind=None)
def _lowered(x: Any, packed: Any, shape: Any, bias: Any) -> Any:
    tokens = sympy_product(x.get_size()[:-1])
    kernel: Any = mkldnn_ir.MKLPackedLinear
    return TensorBox.create(kernel.create(x, packed, shape, bias, tokens))

"""Linear layers whose weights are stored in another layout than PyTorch's, and the products with them.

PyTorch multiplies by weights in row order. On many CPUs this is slowest at 2 to 32 tokens per pass, the sizes
of speculative decoding: the library copies the weights into a layout of its own in every pass. Here they are
stored in such a layout once. Products differ between the layouts by float rounding only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..native import linear as panels

MKLDNN: Any = torch.ops.mkldnn
MKL: Any = torch.ops.mkl
PANELS = "panels"
TOKENS = 9  # per pass, for which MKL packs; it multiplies any number


@dataclass(frozen=True, slots=True)
class Layout:
    """How a weight of shape (out, in) is stored, and multiplied with.

    `product` takes the input, the stored weight, a tensor of the weight's own shape without memory behind it,
    and the bias.
    """

    supports: Callable[[Tensor], bool]
    pack: Callable[[Tensor], Tensor]
    product: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def floats(weight: Tensor) -> bool:
    """Whether a weight is of a kind that can be packed at all."""
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)


def _onednn(weight: Tensor) -> bool:
    backend: Any = torch.backends.mkldnn
    present = hasattr(MKLDNN, "_reorder_linear_weight") and hasattr(MKLDNN, "_linear_pointwise")
    return floats(weight) and bool(backend.is_available()) and present


def _mkl(weight: Tensor) -> bool:
    backend: Any = torch.backends.mkl
    present = hasattr(MKL, "_mkl_reorder_linear_weight") and hasattr(MKL, "_mkl_linear")
    return floats(weight) and weight.dtype == torch.float32 and bool(backend.is_available()) and present


def _by_columns(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, packed.t(), bias)


def _by_onednn(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = MKLDNN._linear_pointwise(x, packed, bias, "none", [], "")
    return y


def _by_mkl(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = MKL._mkl_linear(x, packed, shape, bias, x.numel() // x.shape[-1])
    return y


LAYOUTS = {
    "columns": Layout(floats, lambda weight: weight.t().contiguous(), _by_columns),
    "onednn": Layout(_onednn, lambda weight: MKLDNN._reorder_linear_weight(weight, None), _by_onednn),
    "mkl": Layout(_mkl, lambda weight: MKL._mkl_reorder_linear_weight(weight, TOKENS), _by_mkl),
    PANELS: Layout(panels.supports, panels.pack, panels.linear),
}
TURNED = "turned"  # stored as it is: the product is computed as (W x^T)^T


class PackedLinear(nn.Module):
    """A linear layer whose weight is stored in one of `LAYOUTS` only.

    `weight` is an empty tensor of the right dtype and device, for models that read these from their layers.
    """

    def __init__(self, linear: nn.Linear, layout: str) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features, self.layout = linear.in_features, linear.out_features, layout
        self.packed, self.bias = LAYOUTS[layout].pack(weight), linear.bias
        self.shape, self.weight = weight.new_zeros(()).expand(weight.shape), weight.new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        return LAYOUTS[self.layout].product(x, self.packed, self.shape, self.bias)


class TurnedLinear(nn.Linear):
    """A linear layer that computes (W x^T)^T: for weights that other modules read too."""

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        y = torch.mm(self.weight, x.reshape(-1, self.in_features).t()).t().contiguous()
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias


def turn(linear: nn.Linear) -> TurnedLinear:
    """The layer itself, as a `TurnedLinear`: tied weights stay tied."""
    linear.__class__ = TurnedLinear
    assert isinstance(linear, TurnedLinear)
    return linear

"""Linear layers whose weights are stored in another layout than PyTorch's, and the products with them.

PyTorch multiplies by weights in row order. On many CPUs this is slowest at 2 to 32 tokens per pass, the sizes
of speculative decoding: the library copies the weights into a layout of its own in every pass. Here they are
stored in such a layout once. Products differ between the layouts by float rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..native import kernels as panels
from .lazy import read, stack

MKLDNN: Any = torch.ops.mkldnn
MKL: Any = torch.ops.mkl
PANELS = "panels"
# Of float32 weights whose values a shorter format has: the same products, bit for bit, in less memory.
SHORT = {
    "4-bit-panels": torch.int32,
    "8-bit-panels": torch.int8,
    "bfloat16-panels": torch.bfloat16,
    "float16-panels": torch.float16,
}
KERNELS = (*SHORT, PANELS)  # our own, the best one first
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


def _shortens(dtype: torch.dtype, weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and panels.supports(weight, dtype)


LAYOUTS = {
    "columns": Layout(floats, lambda weight: weight.t().contiguous(), _by_columns),
    "onednn": Layout(_onednn, lambda weight: MKLDNN._reorder_linear_weight(weight, None), _by_onednn),
    "mkl": Layout(_mkl, lambda weight: MKL._mkl_reorder_linear_weight(weight, TOKENS), _by_mkl),
    PANELS: Layout(panels.supports, panels.pack, panels.linear),
} | {
    name: Layout(partial(_shortens, dtype), partial(panels.pack, stored=dtype), panels.linear)
    for name, dtype in SHORT.items()
}
TURNED = "turned"  # stored as it is: the product is computed as (W x^T)^T


class PackedLinear(nn.Module):
    """A linear layer whose weight is stored in one of `LAYOUTS` only.

    `weight` is an empty tensor of the right dtype and device, for models that read these from their layers.
    """

    def __init__(self, linear: nn.Linear, layout: str) -> None:
        super().__init__()
        weight = read(linear.weight.detach())
        self.in_features, self.out_features, self.layout = linear.in_features, linear.out_features, layout
        self.packed, self.bias = LAYOUTS[layout].pack(weight), linear.bias
        self.shape, self.weight = weight.new_zeros(()).expand(weight.shape), weight.new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        return LAYOUTS[self.layout].product(x, self.packed, self.shape, self.bias)


class TurnedLinear(nn.Linear):
    """A linear layer that computes (W x^T)^T: for weights that other modules read too."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.mm(self.weight, x.reshape(-1, self.in_features).t()).t().contiguous()
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias


def turn(linear: nn.Linear) -> TurnedLinear:
    """The layer itself, as a `TurnedLinear`: tied weights stay tied."""
    linear.__class__ = TurnedLinear
    assert isinstance(linear, TurnedLinear)
    return linear


class FusedLinear(nn.Module):
    """The first of several layers that read the same tensor; `linear` computes the outputs of all.

    The others take their part of that product if they are given the very same tensor, and compute it again if
    not.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.sizes = [layer.out_features for layer in layers]
        self.in_features, self.out_features = layers[0].in_features, self.sizes[0]
        self.linear: nn.Module = joined(layers)
        first = layers[0].weight
        self.weight, self.bias = torch.empty(0, dtype=first.dtype, device=first.device), None
        self.held: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.held = None  # what the others left is older than this call
        return self.part(x, 0)

    def part(self, x: Tensor, index: int) -> Tensor:
        held = self.held  # read once: other threads may run the same model
        if held is None or held[0] is not x:
            held = (x, self.linear(x).split(self.sizes, -1))
        self.held = held if index + 1 < len(self.sizes) else None
        return held[1][index]


class Sibling(nn.Module):
    """Another of the layers: its part of the product of the first."""

    def __init__(self, first: FusedLinear, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = first.in_features, first.sizes[index]
        self.weight, self.bias = first.weight, None
        self.first, self.index = (first,), index  # in a tuple: its tensors have one name only

    def forward(self, x: Tensor) -> Tensor:
        return self.first[0].part(x, self.index)


def joined(layers: Sequence[nn.Linear]) -> nn.Linear:
    """One layer whose outputs are those of all, one after the other."""
    weight = stack([layer.weight.detach() for layer in layers])
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    if biases:
        linear.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return linear


def fuse(model: nn.Module, names: Sequence[str]) -> None:
    """Put one product in the place of the layers of these names, which have the same input."""
    layers: list[nn.Linear] = [model.get_submodule(name) for name in names]  # type: ignore[misc]
    first = FusedLinear(layers)
    for index, name in enumerate(names):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Sibling(first, index) if index else first)


def fused_groups(model: nn.Module) -> list[list[str]]:
    """The names of the layers that share a product, group by group."""
    groups: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, FusedLinear):
            groups.setdefault(id(module), []).insert(0, name)
        elif isinstance(module, Sibling):
            groups.setdefault(id(module.first[0]), []).append(name)
    return [
        sorted(group, key=lambda name: getattr(model.get_submodule(name), "index", 0))
        for group in groups.values()
    ]

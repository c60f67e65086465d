"""Linear layers of the same input as one product: half the calls where layers are small."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
        self.weight, self.bias = layers[0].weight.detach().new_empty(0), None
        self.held: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b of the first layer."""
        self.held = None  # what the others left is older than this call
        return self.part(x, 0)

    def part(self, x: Tensor, index: int) -> Tensor:
        """The output of one of the layers, shape (..., its out_features)."""
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
        """x W^T + b."""
        return self.first[0].part(x, self.index)


def joined(layers: Sequence[nn.Linear]) -> nn.Linear:
    """One layer whose outputs are those of all, one after the other."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
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

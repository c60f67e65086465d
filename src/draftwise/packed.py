"""Linear layers with weights laid out once for oneDNN.

A CPU pass over a few tokens then runs several times faster: PyTorch's default multiplies by weights in row
order, which costs most where speculative decoding lives, at 2 to 16 tokens a pass. The layout is the one
that TorchInductor's freezing uses; the products differ from the default's by float rounding only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SMALLEST = 1 << 17  # weights below this lose more to the call than they win by the layout (measured)


class PackedLinear(nn.Module):
    """A linear layer whose weight exists in oneDNN's layout only.

    `weight` is empty, of the right dtype and device, for models that ask their layers for these.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias
        self.weight = linear.weight.detach().new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """The usual x W^T + b."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


def available() -> bool:
    """Whether this build of PyTorch can pack."""
    ops: Any = torch.ops.mkldnn
    mkldnn: Any = torch.backends.mkldnn
    return (
        bool(mkldnn.is_available())
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )


def pack(model: nn.Module) -> int:
    """Pack the large plain linear layers of a CPU model in place; returns how many.

    Left alone are quantised and sharded models, subclasses of `nn.Linear`, layers that are not float32 or
    bfloat16 on a CPU, and weights that another module uses too: a tied embedding would be held twice.
    """
    sharded = getattr(model, "hf_device_map", None) or getattr(model, "hf_quantizer", None)
    if sharded or not available():
        return 0
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    done = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _packable(child.weight) and uses[id(child.weight)] == 1:
                setattr(parent, name, PackedLinear(child))
                done += 1
    return done


def _packable(weight: Tensor) -> bool:
    plain = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
    return plain and weight.numel() >= SMALLEST

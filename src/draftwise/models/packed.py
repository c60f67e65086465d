"""Linear layers whose weights are stored in oneDNN's layout, if that is faster.

PyTorch multiplies by weights in row order by default. On many CPUs this is slowest at 2 to 16 tokens per
pass, the sizes of speculative decoding. The layout is the one of TorchInductor's freezing; the products
differ from the default's by float rounding only. On other CPUs it is slower, so it is timed first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from . import packing, verdicts

SMALLEST = 1 << 17  # smaller weights lose more by the call than they gain by the layout (measured)
TIMED = 1 << 24  # bytes of weights read in a timed pass: more than fits in a core's own cache
LARGE = "large linear layers"
LOG = getLogger(__name__)

Pays = Callable[[Sequence[nn.Linear]], bool]
DECIDED: dict[str, bool] = {}  # in this process, unclear ones too, so that a model writes the same text


class PackedLinear(nn.Module):
    """A linear layer whose weight exists in oneDNN's layout only.

    `weight` is an empty tensor of the right dtype and device, for models that read these from their layers.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias
        self.weight = linear.weight.detach().new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


def available() -> bool:
    """Whether this build of PyTorch supports packing."""
    ops: Any = torch.ops.mkldnn
    mkldnn: Any = torch.backends.mkldnn
    return (
        bool(mkldnn.is_available())
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )


def arrange(model: nn.Module, pack: bool | str) -> None:
    """Pack a model's weights as requested: True wherever possible, False nowhere, "auto" if it is faster.

    Raises:
        UserError: `pack` is none of these.
    """
    if checked(pack):
        packed = pack_layers(model, faster if pack == "auto" else lambda layers: True)
        LOG.info("%s: weights of %d %s packed (pack=%s)", type(model).__name__, packed, LARGE, pack)


def checked(pack: bool | str) -> bool | str:
    """The requested mode, if it is valid and supported.

    Raises:
        UserError: it is neither True, False nor "auto".
    """
    if pack not in (True, False, "auto"):
        raise UserError(f"pack={pack!r}: choose from 'auto', True and False")
    return pack


def pack_layers(model: nn.Module, pays: Pays) -> int:
    """Pack large plain linear layers of a CPU model, for shapes for which `pays` returns True.

    Returns how many were packed. Not packed: quantised and sharded models, subclasses of `nn.Linear`, layers
    that are not float32 or bfloat16 on a CPU, and weights that another module shares (a tied embedding would
    be stored twice).
    """
    alike: dict[object, list[tuple[nn.Module, str, nn.Linear]]] = {}
    for parent, name, child in _candidates(model):
        shape = (tuple(child.weight.shape), child.weight.dtype, child.bias is None)
        alike.setdefault(shape, []).append((parent, name, child))
    done = 0
    for places in alike.values():
        if pays([child for _, _, child in places]):
            for parent, name, child in places:
                setattr(parent, name, PackedLinear(child))
            done += len(places)
    return done


@torch.inference_mode()
def faster(layers: Sequence[nn.Linear]) -> bool:
    """Whether packing makes passes through these layers, all of one shape, faster on this machine.

    The answer is saved, unless it was unclear or the machine was busy.
    """
    weight = layers[0].weight
    isa, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    rows, columns = weight.shape
    bias = "" if layers[0].bias is None else " + bias"
    where = packing.machine(torch.__version__, isa, threads)
    key = f"{where} {weight.dtype} {rows} x {columns}{bias}"
    if key not in DECIDED:
        known = verdicts.load("packing", key)
        if isinstance(known, dict) and isinstance(known.get("packed"), bool):
            DECIDED[key] = known["packed"]
        else:
            DECIDED[key] = _timed(layers, key)
    return DECIDED[key]


def _timed(layers: Sequence[nn.Linear], key: str) -> bool:
    weight = layers[0].weight
    some = layers[: max(1, TIMED // (weight.numel() * weight.element_size()))]
    rng = torch.Generator().manual_seed(0)  # leaves the user's own random generator unchanged
    tokens = torch.rand(1, max(packing.WIDTHS), weight.shape[1], generator=rng).to(weight.dtype)
    inputs = {width: tokens[:, :width].contiguous() for width in packing.WIDTHS}

    def through(modules: Sequence[nn.Module]) -> packing.Pass:
        return lambda width: [module(inputs[width]) for module in modules]

    found = packing.measure(through(some), through([PackedLinear(one) for one in some]))
    if found.lasting:
        verdicts.keep("packing", key, found.as_json())
    return found.pays


def layouts(parts: Mapping[str, Any]) -> dict[str, str]:
    """The number of packed layers of each target or drafter that runs a model, by name."""
    found = {}
    for name, part in parts.items():
        model = getattr(part, "module", None) or getattr(getattr(part, "rows", None), "model", None)
        if isinstance(model, nn.Module):
            packed = sum(isinstance(module, PackedLinear) for module in model.modules())
            found[name] = f"{packed} of {packed + len(_candidates(model))} {LARGE}"
    return found


def _candidates(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The layers that can be packed, each with its parent module and its name there."""
    sharded = getattr(model, "hf_device_map", None) or getattr(model, "hf_quantizer", None)
    if sharded or not available():
        return []
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and _packable(child.weight) and uses[id(child.weight)] == 1
    ]


def _packable(weight: Tensor) -> bool:
    plain = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
    return plain and weight.numel() >= SMALLEST

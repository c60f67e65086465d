"""Chooses how the weights of a model's linear layers are stored: as they are, or packed where that is faster.

Which layout is the fastest depends on the CPU, the layer's shape and the number of threads, so it is timed on
this machine, and the answer is saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UserError
from . import packing, verdicts
from .layouts import LAYOUTS, TURNED, PackedLinear, TurnedLinear, floats, turn

COPY = 1 / 3  # of a model's bytes: a shared weight up to this may be stored once more, in another layout
SMALLEST = 1 << 17  # smaller weights lose more by the call than they gain by the layout (measured)
TIMED = 1 << 24  # bytes of weights read in a timed pass: more than fits in a core's own cache
LARGE = "large linear layers"
ROWS = "rows"  # PyTorch's own layout
LOG = getLogger(__name__)

Choice = Callable[[Sequence[nn.Linear], Sequence[str]], str]  # of a layout, for layers of one shape
DECIDED: dict[str, str] = {}  # in this process, unclear ones too, so that a model writes the same text


class Place(NamedTuple):
    """A layer that can be packed, where it hangs, and in which layouts."""

    parent: nn.Module
    name: str
    layer: nn.Linear
    layouts: tuple[str, ...]


def arrange(model: nn.Module, pack: bool | str) -> None:
    """Pack a model's weights as requested: True wherever possible, False nowhere, "auto" if it is faster.

    Raises:
        UserError: `pack` is none of these.
    """
    if checked(pack):
        done = pack_layers(model, fastest if pack == "auto" else first)
        LOG.info("%s: weights of %s (pack=%s)", type(model).__name__, _listed(done, LARGE), pack)


def checked(pack: bool | str) -> bool | str:
    """The requested mode, if it is valid and supported.

    Raises:
        UserError: it is neither True, False nor "auto".
    """
    if pack not in (True, False, "auto"):
        raise UserError(f"pack={pack!r}: choose from 'auto', True and False")
    return pack


def pack_layers(model: nn.Module, choose: Choice) -> Counter[str]:
    """Pack large plain linear layers of a CPU model in the layouts chosen for their shapes.

    Returns how many layers have which layout. Left as they are: quantised and sharded models, subclasses of
    `nn.Linear`, and layers that are not float32 or bfloat16 on a CPU. A weight that another module shares
    (a tied embedding) stays: its product may be turned, or, up to a third of the model, it is stored twice.
    """
    alike: dict[object, list[Place]] = {}
    for place in _candidates(model):
        weight = place.layer.weight
        shape = (tuple(weight.shape), weight.dtype, place.layer.bias is None, place.layouts)
        alike.setdefault(shape, []).append(place)
    done: Counter[str] = Counter()
    for places in alike.values():
        layout = choose([place.layer for place in places], places[0].layouts)
        done[layout] += len(places)
        for place in places:
            if layout == TURNED:
                turn(place.layer)
            elif layout != ROWS:
                setattr(place.parent, place.name, PackedLinear(place.layer, layout))
    return done


def possible(weight: Tensor, *, shared: bool = False, copied: bool = False) -> tuple[str, ...]:
    """A weight's layouts other than its own; a shared one may be turned, and if `copied` stored twice."""
    stored = [name for name, layout in LAYOUTS.items() if layout.supports(weight)] * (copied or not shared)
    return (*[TURNED] * (shared and floats(weight)), *stored)


def first(layers: Sequence[nn.Linear], names: Sequence[str]) -> str:
    """Always the same layout, if there is one: oneDNN's, or else by columns."""
    return next((name for name in ("onednn", "columns") if name in names), ROWS)


@torch.inference_mode()
def fastest(layers: Sequence[nn.Linear], names: Sequence[str]) -> str:
    """The layout in which passes through these layers, all of one shape, are the fastest on this machine.

    The answer is saved, unless it was unclear or the machine was busy.
    """
    weight = layers[0].weight
    isa, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    rows, columns = weight.shape
    bias = "" if layers[0].bias is None else " + bias"
    where = packing.machine(torch.__version__, isa, threads)
    key = f"{where} {weight.dtype} {rows} x {columns}{bias} of {' '.join(names)}"
    if key not in DECIDED:
        known = verdicts.load("packing", key)
        layout = known.get("layout") if isinstance(known, dict) else None
        DECIDED[key] = layout if layout in (ROWS, *names) else _timed(layers, names, key)
    return DECIDED[key]


def _timed(layers: Sequence[nn.Linear], names: Sequence[str], key: str) -> str:
    """The winner of timings in turn: each layout against the best one before it."""
    weight = layers[0].weight
    some = layers[: max(1, TIMED // (weight.numel() * weight.element_size()))]
    rng = torch.Generator().manual_seed(0)  # leaves the user's own random generator unchanged
    tokens = torch.rand(1, max(packing.WIDTHS), weight.shape[1], generator=rng).to(weight.dtype)
    inputs = {width: tokens[:, :width].contiguous() for width in packing.WIDTHS}

    def through(layout: str) -> packing.Pass:
        modules = [_stored(one, layout) for one in some]
        return lambda width: [module(inputs[width]) for module in modules]

    best, kernel, lasting, ratios = ROWS, through(ROWS), True, dict[str, list[float]]()
    for name in names:
        found = packing.measure(kernel, challenger := through(name))
        ratios[f"{name} over {best}"] = found.rounded
        lasting = found.lasting and (lasting or found.pays)  # who beats the best beats all before it
        if found.pays:
            best, kernel = name, challenger
    if lasting:
        verdicts.keep("packing", key, {"layout": best, "ratios": ratios})
    return best


def _stored(layer: nn.Linear, layout: str) -> nn.Module:
    """The layer in a layout, beside the layer itself."""
    if layout == ROWS:
        return layer
    if layout != TURNED:
        return PackedLinear(layer, layout)
    beside = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    beside.weight, beside.bias = layer.weight, layer.bias
    return turn(beside)


def layouts(parts: Mapping[str, Any]) -> dict[str, str]:
    """How many large layers of each target or drafter that runs a model have which layout, by name."""
    found = {}
    for name, part in parts.items():
        model = getattr(part, "module", None) or getattr(getattr(part, "rows", None), "model", None)
        if isinstance(model, nn.Module):
            kinds = [kind for module in model.modules() if (kind := layout_of(module))]
            found[name] = _listed(Counter(kinds + [ROWS] * len(_candidates(model))), LARGE)
    return found


def layout_of(module: nn.Module) -> str:
    """The layout that was chosen for a layer; nothing if none was."""
    return module.layout if isinstance(module, PackedLinear) else TURNED * isinstance(module, TurnedLinear)


def _listed(done: Counter[str], what: str) -> str:
    """In words: 3 of 4 packed, and in which layouts."""
    kinds = ", ".join(f"{name} {count}" for name, count in done.most_common() if count and name != ROWS)
    total = sum(done.values())
    return f"{total - done[ROWS]} of {total} {what} packed" + (f" ({kinds})" if kinds else "")


def _candidates(model: nn.Module) -> list[Place]:
    """The layers that can be packed."""
    if getattr(model, "hf_device_map", None) or getattr(model, "hf_quantizer", None):
        return []
    room = COPY * sum(parameter.nbytes for parameter in model.parameters())
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return [
        Place(parent, name, child, names)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= SMALLEST
        if (
            names := possible(
                child.weight, shared=uses[id(child.weight)] > 1, copied=child.weight.nbytes <= room
            )
        )
    ]

"""Chooses how the weights of a model's linear layers are stored: as they are, or packed where that is faster;
each alone, or those of the same input as one.

What is the fastest depends on the CPU, the layers' shapes and the number of threads, so it is timed on this
machine, and the answer is saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from torch import nn

from ...errors import UserError
from . import choice
from .choice import ROWS, possible
from .fused import fuse, fused_groups
from .layouts import TURNED, PackedLinear, TurnedLinear, floats, turn
from .usage import Usage, usage

COPY = 1 / 3  # of a model's bytes: a shared weight up to this may be stored once more, in another layout,
COPIED = 1 << 24  # and one of so many bytes in any model
LOG = getLogger(__name__)

Choice = Callable[[Sequence[nn.Linear], Sequence[str]], str]  # of a layout, for layers of one shape
Verdict = Callable[[Sequence[Sequence[nn.Linear]]], bool]  # whether to fuse groups of the same shapes


class Place(NamedTuple):
    """A layer that can be packed, where it hangs, and in which layouts."""

    parent: nn.Module
    name: str
    layer: nn.Linear
    layouts: tuple[str, ...]


def arrange(model: nn.Module, pack: bool | str) -> None:
    """Fuse and pack a model's layers as requested: True wherever possible, False nowhere, "auto" if faster.

    Raises:
        UserError: `pack` is none of these.
    """
    if checked(pack):
        auto, layers = pack == "auto", _linears(model)
        seen = usage(model, layers) if layers else Usage([], set())
        fuse_layers(model, seen.siblings, choice.faster_fused if auto else choice.always)
        pack_layers(model, choice.fastest if auto else choice.first, keep=seen.kept)
        LOG.info("%s: weights of %s (pack=%s)", type(model).__name__, _said(model), pack)


def checked(pack: bool | str) -> bool | str:
    """The requested mode, if it is valid and supported.

    Raises:
        UserError: it is neither True, False nor "auto".
    """
    if pack not in (True, False, "auto"):
        raise UserError(f"pack={pack!r}: choose from 'auto', True and False")
    return pack


def fuse_layers(model: nn.Module, siblings: Sequence[Sequence[str]], pays: Verdict) -> None:
    """Store each group of layers that read the same tensor as one layer, where `pays` says so."""
    uses, layers = _uses(model), _linears(model)
    alike: dict[object, list[Sequence[str]]] = {}
    for names in siblings:
        group = [layers[name] for name in names]
        if all(uses[id(layer.weight)] == 1 for layer in group):
            shapes = tuple(layer.weight.shape for layer in group)
            alike.setdefault((shapes, group[0].weight.dtype, group[0].bias is None), []).append(names)
    for groups in sorted(alike.values(), key=lambda groups: -_size(layers, groups)):  # worth most first
        if pays([[layers[name] for name in names] for names in groups]):
            for names in groups:
                fuse(model, names)
                for name in names:
                    del layers[name]  # and with it the weight, of which the fused layer has a copy


def pack_layers(model: nn.Module, choose: Choice, keep: Collection[str] = ()) -> Counter[str]:
    """Pack plain linear layers of a CPU model in the layouts chosen for their shapes.

    Returns how many layers have which layout. Left as they are: layers named in `keep`, quantised and sharded
    models, subclasses of `nn.Linear`, and layers that are not float32 or bfloat16 on a CPU. A weight that
    another module shares (a tied embedding) stays: its product may be turned, or it is stored twice, up to a
    third of the model or 16 MiB.
    """
    alike: dict[object, list[Place]] = {}
    for place in _candidates(model, keep):
        weight = place.layer.weight
        shape = (tuple(weight.shape), weight.dtype, place.layer.bias is None, place.layouts)
        alike.setdefault(shape, []).append(place)
    done: Counter[str] = Counter()
    for places in sorted(alike.values(), key=lambda places: -sum(p.layer.weight.nbytes for p in places)):
        layout = choose([place.layer for place in places], places[0].layouts)
        done[layout] += len(places)
        while places:  # each weight is free as soon as it is packed
            place = places.pop()
            if layout == TURNED:
                turn(place.layer)
            elif layout != ROWS:
                setattr(place.parent, place.name, PackedLinear(place.layer, layout))
    return done


def _size(layers: Mapping[str, nn.Linear], groups: Sequence[Sequence[str]]) -> int:
    return sum(layers[name].weight.nbytes for names in groups for name in names)


def layouts(parts: Mapping[str, Any]) -> dict[str, str]:
    """How many linear layers of each target or drafter that runs a model have which layout, by name."""
    found = {}
    for name, part in parts.items():
        model = getattr(part, "module", None) or getattr(getattr(part, "rows", None), "model", None)
        if isinstance(model, nn.Module):
            found[name] = _said(model)
    return found


def layout_of(module: nn.Module) -> str:
    """The layout that was chosen for a layer; nothing if none was."""
    return module.layout if isinstance(module, PackedLinear) else TURNED * isinstance(module, TurnedLinear)


def _said(model: nn.Module) -> str:
    """In words: 3 of 4 packed, in which layouts, and how many are several in one."""
    done = Counter(kind for module in model.modules() if (kind := layout_of(module)))
    kinds = ", ".join(f"{name} {count}" for name, count in done.most_common())
    packed, total = done.total(), done.total() + len(_candidates(model))
    groups = fused_groups(model)
    fused = f"; {sum(map(len, groups))} fused to {len(groups)}" if groups else ""
    return f"{packed} of {total} linear layers packed" + (f" ({kinds})" if kinds else "") + fused


def _linears(model: nn.Module) -> dict[str, nn.Linear]:
    """All plain linear layers of a kind that can be packed, by name."""
    if getattr(model, "hf_device_map", None) or getattr(model, "hf_quantizer", None):
        return {}
    plain = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    return {name: layer for name, layer in plain.items() if floats(layer.weight)}


def _uses(model: nn.Module) -> Counter[int]:
    """In how many modules each weight is, by its identity."""
    return Counter(
        id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False)
    )


def _candidates(model: nn.Module, keep: Collection[str] = ()) -> list[Place]:
    """The layers that can be packed."""
    uses, places = _uses(model), []
    room = max(COPIED, COPY * sum(parameter.nbytes for parameter in model.parameters()))
    for path, layer in _linears(model).items():
        weight, (parent, _, name) = layer.weight, path.rpartition(".")
        if path not in keep:
            names = possible(weight, shared=uses[id(weight)] > 1, copied=weight.nbytes <= room)
            if names:
                places.append(Place(model.get_submodule(parent), name, layer, names))
    return places

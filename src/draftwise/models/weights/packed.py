"""Chooses how the weights of a model's linear layers are stored: as they are, or packed where that is faster;
each alone, or those of the same input as one.

What is the fastest depends on the CPU, the layers' shapes and the number of threads, so it is timed on this
machine, and the answer is saved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from ...errors import UserError
from ..huge_pages import ALIGNED, Room, release_freed, use_huge_pages
from . import timing
from .layouts import TURNED, PackedLinear, TurnedLinear, floats, fuse, fused_groups, turn
from .lazy import read_all
from .timing import ROWS, possible

TOKENS = 4  # of the watched pass
ROUNDING = 1e-3  # relative: what other strides of the same values may change in the logits


class Usage(NamedTuple):
    """How a pass of a few tokens uses some linear layers, by name, which is a property of the model's code.

    `siblings` are groups that read the same tensor, each in the order of its calls; the model can read their
    outputs as slices of one tensor. `kept` are layers whose weight is read by others than the layer, and
    those of which nothing is known: neither they were called, nor layers of the same name in other places.
    """

    siblings: list[list[str]]
    kept: set[str]


@torch.no_grad()
def watch_usage(model: nn.Module, layers: Mapping[str, nn.Linear]) -> Usage:
    """Watch a pass; nothing is found in a model that cannot read tokens alone."""
    given: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def note(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        # The copy is compared later; while the tensor lives, no other has its identity.
        given.setdefault(name, []).append((args[0], args[0].clone()))

    reads = _Reads(model, layers)
    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in layers.items()]
    try:
        with _removed(hooks + reads.hooks()), reads:
            own = _logits(model)
    except Exception:  # models fail in many ways, and then nothing is known
        return Usage([], set())
    groups = _group_siblings({name: args for name, args in given.items() if name not in reads.names}, layers)
    called = {_without_numbers(name) for name in given.keys() - reads.names}
    kept = {name for name in layers if name in reads.names or _without_numbers(name) not in called}
    try:
        with _removed(_slice_outputs(groups, layers)):
            again = _logits(model)
    except Exception:  # as above; some read no slices
        return Usage([], kept)
    close = bool((own - again).abs().max() <= ROUNDING * own.std())
    return Usage(groups if close else [], kept)


def _group_siblings(
    given: Mapping[str, list[tuple[Tensor, Tensor]]], layers: Mapping[str, nn.Linear]
) -> list[list[str]]:
    """Layers called once, with the same tensor that was not written to in between, and all with a bias or all
    without."""
    groups: dict[object, list[str]] = {}
    values: dict[int, Tensor] = {}
    for name, args in given.items():
        (x, copy), layer = args[0], layers[name]
        if len(args) == 1 and torch.equal(values.setdefault(id(x), copy), copy):
            groups.setdefault((id(x), layer.bias is None, layer.weight.dtype), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


class _Reads(TorchDispatchMode):
    """Which weights are arguments of an operation outside the modules that they belong to."""

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Linear]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of = {id(layer.weight): name for name, layer in layers.items()}
        self.owners = [
            module for module in model.modules() if any(id(p) in self.of for p in module.parameters(False))
        ]
        self.inside, self.names = 0, set[str]()

    def hooks(self) -> list[RemovableHandle]:
        """Count the owners that the pass is in."""

        def count(step: int, *_: Any) -> None:
            self.inside += step

        entering = [owner.register_forward_pre_hook(partial(count, 1)) for owner in self.owners]
        return entering + [owner.register_forward_hook(partial(count, -1)) for owner in self.owners]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.inside:
            tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
            self.names |= {self.of[id(one)] for one in tensors if id(one) in self.of}
        return func(*args, **kwargs)


def _without_numbers(name: str) -> str:
    """A layer's name without the numbers of blocks and experts."""
    return re.sub(r"\d+", "#", name)


@contextmanager
def _removed(hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _slice_outputs(groups: Sequence[Sequence[str]], layers: Mapping[str, nn.Linear]) -> list[RemovableHandle]:
    """Give each member's output the strides that it would have as a part of the group's."""

    def cut(start: int, total: int, module: nn.Module, args: Any, y: Tensor) -> Tensor:
        return y.new_zeros(*y.shape[:-1], total)[..., start : start + y.shape[-1]].copy_(y)

    hooks = []
    for group in groups:
        sizes = [layers[name].out_features for name in group]
        for i, name in enumerate(group):
            hooks.append(layers[name].register_forward_hook(partial(cut, sum(sizes[:i]), sum(sizes))))
    return hooks


def _logits(model: Any) -> Tensor:
    weight = model.get_input_embeddings().weight
    ids = torch.arange(1, TOKENS + 1, device=weight.device)[None].clamp(max=len(weight) - 1)
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits.float()


COPY = 1 / 3  # of a model's bytes: a shared weight up to this may be stored once more, in another layout,
COPIED = 1 << 24  # and one of so many bytes in any model
KEPT = (
    1 << 27
)  # bytes of weights that are packed before the system gets their memory back, which takes a while
LOG = getLogger(__name__)

Head = TypeVar("Head", bound=nn.Module)
Choice = Callable[[Sequence[nn.Linear], Sequence[str]], str]  # of a layout, for layers of one shape
Verdict = Callable[[Sequence[Sequence[nn.Linear]]], bool]  # whether to fuse groups of the same shapes


class Place(NamedTuple):
    """A layer that can be packed, where it hangs, and in which layouts."""

    parent: nn.Module
    name: str
    layer: nn.Linear
    layouts: tuple[str, ...]


def arrange(
    model: nn.Module, pack: bool | str, *, widths: Sequence[int] = timing.WIDTHS, exact: bool = False
) -> None:
    """Fuse and pack a model's layers as requested: True wherever possible, False nowhere, "auto" if faster in
    passes of these widths. With `exact`, both of the former are our own layout (`timing.alone`). Then the
    weights move into huge pages.

    Raises:
        UserError: `pack` is none of these.
    """
    if checked(pack):
        auto, layers = pack == "auto", _linears(model)
        usage = watch_usage(model, layers) if layers else Usage([], set())
        del layers  # and with them, one by one below, the weights that are packed
        fuse_layers(model, usage.siblings, timing.faster_fused if auto else timing.always)
        fastest = partial(timing.fastest, widths=widths) if auto else timing.first
        pack_layers(model, timing.alone if exact else fastest, keep=usage.kept)
        model.train(model.training)  # new modules begin in training mode
        LOG.info("%s: weights of %s (pack=%s)", type(model).__name__, _said(model), pack)
    read_all(model)
    use_huge_pages(model)


def choose_precision(head: Head) -> Head:
    """A head in bfloat16 where that is faster than float32: what it drafts is verified."""
    layers = [layer for layer in _linears(head).values() if layer.weight.dtype == torch.float32]
    if layers and timing.faster_in_half(layers):
        LOG.info("%s: in bfloat16, which is faster here", type(head).__name__)
        return head.to(torch.bfloat16)
    return head


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
    done, freed = Counter[str](), 0
    for places in sorted(alike.values(), key=lambda places: -sum(p.layer.weight.nbytes for p in places)):
        layout = choose([place.layer for place in places], places[0].layouts)
        done[layout] += len(places)
        room: Room | None = None
        while places:  # each weight is free as soon as it is packed
            place = places.pop()
            if layout == TURNED:
                turn(place.layer)
            elif layout != ROWS:
                linear = PackedLinear(place.layer, layout)
                room = room or Room((len(places) + 1) * (linear.packed.nbytes + ALIGNED))
                linear.packed = room.take(linear.packed)
                setattr(place.parent, place.name, linear)
                freed += place.layer.weight.nbytes
            if freed >= KEPT:
                release_freed()
                freed = 0
    return done


def _size(layers: Mapping[str, nn.Linear], groups: Sequence[Sequence[str]]) -> int:
    return sum(layers[name].weight.nbytes for names in groups for name in names)


def layouts(parts: Mapping[str, Any]) -> dict[str, str]:
    """How many linear layers of each target or drafter that runs a model have which layout, by name."""
    descriptions = {}
    for name, part in parts.items():
        model = getattr(part, "module", None) or getattr(getattr(part, "runner", None), "model", None)
        if isinstance(model, nn.Module):
            descriptions[name] = _said(model)
    return descriptions


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
    if getattr(model, "hf_device_map", None) or getattr(model, "hf_quantizer", None):
        return {}
    plain = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    return {name: layer for name, layer in plain.items() if floats(layer.weight)}


def own_weights(model: nn.Module) -> set[int]:
    """The identities of weights that may be packed and that no other module has."""
    uses = _uses(model)
    return {key for layer in _linears(model).values() if uses[key := id(layer.weight)] == 1}


def _uses(model: nn.Module) -> Counter[int]:
    return Counter(
        id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False)
    )


def _candidates(model: nn.Module, keep: Collection[str] = ()) -> list[Place]:
    uses, places = _uses(model), []
    room = max(COPIED, COPY * sum(parameter.nbytes for parameter in model.parameters()))
    for path, layer in _linears(model).items():
        weight, (parent, _, name) = layer.weight, path.rpartition(".")
        if path not in keep:
            names = possible(weight, shared=uses[id(weight)] > 1, copied=weight.nbytes <= room)
            if names:
                places.append(Place(model.get_submodule(parent), name, layer, names))
    return places

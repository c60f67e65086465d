"""Watches how a model uses its linear layers, which is a property of its code and not of names.

Layers that read the same tensor can share a product. A layer whose weight the model multiplies with by itself
has to keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

TOKENS = 4  # of the watched pass
ROUNDING = 1e-3  # relative: what other strides of the same values may change in the logits


class Usage(NamedTuple):
    """How a pass of a few tokens uses some linear layers, by name.

    `siblings` are groups that read the same tensor, each in the order of its calls; the model can read their
    outputs as slices of one tensor. `kept` are layers whose weight is read by others than the layer, and
    those of which nothing is known: neither they were called, nor layers of the same name in other places.
    """

    siblings: list[list[str]]
    kept: set[str]


@torch.no_grad()
def usage(model: nn.Module, layers: Mapping[str, nn.Linear]) -> Usage:
    """Watch a pass; nothing is found in a model that cannot read tokens alone."""
    calls, reads = _Calls(layers), _Reads(model, layers)
    try:
        with calls.noted(), reads.noted():
            own = _logits(model)
    except Exception:  # models fail in many ways, and then nothing is known
        return Usage([], set())
    groups, called = calls.groups(reads.names), {_kind(name) for name in calls.given.keys() - reads.names}
    kept = {name for name in layers if name in reads.names or _kind(name) not in called}
    try:
        with _sliced(groups, layers):
            again = _logits(model)
    except Exception:  # as above; some read no slices
        groups = []
    return Usage(groups if groups and _close(own, again) else [], kept)


@dataclass
class _Calls:
    """What each layer is given, and a copy: as long as the tensor lives, no other has its identity."""

    layers: Mapping[str, nn.Linear]
    given: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    @contextmanager
    def noted(self) -> Iterator[None]:
        def watch(name: str) -> RemovableHandle:
            def note(module: nn.Module, given: tuple[Any, ...]) -> None:
                self.given.setdefault(name, []).append((given[0], given[0].clone()))

            return self.layers[name].register_forward_pre_hook(note)

        with _hooked([watch(name) for name in self.layers]):
            yield

    def groups(self, without: set[str]) -> list[list[str]]:
        """Layers called once, with the same tensor that was not written to in between, and all with a bias or
        all without."""
        groups: dict[object, list[str]] = {}
        values: dict[int, Tensor] = {}
        for name, given in self.given.items():
            if len(given) == 1 and name not in without:
                (x, copy), layer = given[0], self.layers[name]
                if torch.equal(values.setdefault(id(x), copy), copy):
                    groups.setdefault((id(x), layer.bias is None, layer.weight.dtype), []).append(name)
        return [group for group in groups.values() if len(group) > 1]


class _Reads(TorchDispatchMode):
    """Which weights are arguments of an operation outside the modules that they belong to."""

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Linear]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of = {id(layer.weight): name for name, layer in layers.items()}
        self.owners = [
            module
            for module in model.modules()
            if any(id(parameter) in self.of for parameter in module.parameters(recurse=False))
        ]
        self.inside, self.names = 0, set[str]()

    @contextmanager
    def noted(self) -> Iterator[None]:
        def enter(module: nn.Module, given: Any) -> None:
            self.inside += 1

        def leave(module: nn.Module, given: Any, output: Any) -> None:
            self.inside -= 1

        handles = [owner.register_forward_pre_hook(enter) for owner in self.owners]
        handles += [owner.register_forward_hook(leave) for owner in self.owners]
        with _hooked(handles), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.inside:
            for one in tree_leaves((args, kwargs)):
                if isinstance(one, Tensor) and id(one) in self.of:
                    self.names.add(self.of[id(one)])
        return func(*args, **kwargs)


def _kind(name: str) -> str:
    """A layer's name without the numbers of blocks and experts."""
    return re.sub(r"\d+", "#", name)


@contextmanager
def _hooked(handles: Sequence[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _sliced(groups: Sequence[Sequence[str]], layers: Mapping[str, nn.Linear]) -> Iterator[None]:
    """Each member's output has the strides that it would have as a part of the group's."""

    def slicing(start: int, total: int) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def cut(module: nn.Module, given: Any, y: Tensor) -> Tensor:
            part = y.new_zeros(*y.shape[:-1], total)[..., start : start + y.shape[-1]]
            return part.copy_(y)

        return cut

    handles = []
    for group in groups:
        sizes = [layers[name].out_features for name in group]
        for i, name in enumerate(group):
            cut = slicing(sum(sizes[:i]), sum(sizes))
            handles.append(layers[name].register_forward_hook(cut))
    with _hooked(handles):
        yield


def _logits(model: Any) -> Tensor:
    weight = model.get_input_embeddings().weight
    ids = torch.arange(1, TOKENS + 1, device=weight.device)[None].clamp(max=len(weight) - 1)
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits.float()


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two logits differ by rounding alone."""
    return bool((one - other).abs().max() <= ROUNDING * one.std())

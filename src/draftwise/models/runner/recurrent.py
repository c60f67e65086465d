"""The states of recurrent layers: where a model keeps them, and how one row's are taken out and put back.

Linear-attention, state-space and convolution layers fold a text into a state of fixed size, which cannot
rewind. Transformers models keep it in the cache's layers, in an object that one pass returns and the next one
takes, or in attributes of their own modules. A `Place` is any of these.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from ..cache_names import NAMES, name_for
from .cache import Plan, RowCache, RowLayer

Values = list[dict[str, Any]]  # by place, its attributes


class StateLayer(LinearAttentionLayer, RowLayer):  # type: ignore[no-untyped-call, override]  # as its bases
    """A layer with states beside its keys and values, or without any.

    The states are those of one row, exchanged before each pass; keys and values are those of all rows.
    """

    def __init__(self, plan: Plan, number_of_states: int) -> None:
        RowLayer.__init__(self, plan)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        self.fresh = vars(LinearAttentionLayer(number_of_states=number_of_states))

    def lazy_initialization(self, *args: Any, **named: Any) -> None:
        """Allocate keys and values, given by position, or a state, given by name."""
        (RowLayer if args else LinearAttentionLayer).lazy_initialization(self, *args, **named)


class StateCache(RowCache):
    """A cache with a state layer wherever Transformers' own cache has one."""

    def __init__(self, text: Any, depth: int, lengths: Sequence[int] = ()) -> None:
        layers = own_layers(text)
        super().__init__(max(depth, len(layers)), lengths)
        for at, layer in enumerate(layers):
            if isinstance(layer, LinearAttentionCacheLayerMixin):
                self._rows[at] = StateLayer(self.plan, layer.number_of_states)

    def clear(self) -> bool:
        """False: every text begins with states of its own."""
        return False


def own_layers(text: Any) -> list[Any]:
    """The layers of the cache that Transformers makes for a configuration; none if it makes none."""
    try:
        return list(DynamicCache(config=text).layers)
    except (AttributeError, TypeError, ValueError, KeyError):  # a class without such a cache
        return []


def kinds(text: Any) -> list[str]:
    """The kinds of layers for which Transformers' own cache keeps a state."""
    layers = own_layers(text)
    named = list(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    named += ["recurrent state"] * (len(layers) - len(named))
    pairs = zip(named, layers, strict=False)
    return sorted({kind for kind, layer in pairs if isinstance(layer, LinearAttentionCacheLayerMixin)})


def held_by(cache: Any) -> int | None:
    """The number of tokens in a cache; None if states alone have read some, which do not tell how many."""
    if cache is None:
        return 0
    layers = getattr(cache, "layers", ())
    known = [layer for layer in layers if isinstance(layer, CacheLayerMixin)]
    if known or not layers:
        return int(cache.get_seq_length())
    return None if tensors(layers) else 0


def carriers(model: Any) -> list[str]:
    """The arguments of a model's forward in which its states may be carried from pass to pass.

    "" stands for a `StateCache`, if the model uses a cache that this can replace. A name is that of an object
    that the pass before returned. Found by a pass over two tokens.
    """
    ids = torch.zeros((1, 2), dtype=torch.long, device=model.get_input_embeddings().weight.device)
    arguments = set(inspect.signature(model.forward).parameters) - {"labels", "input_ids", "attention_mask"}
    own, out = name_for(model), model(input_ids=ids, use_cache=True, return_dict=True)
    pairs = [(own if name in NAMES else name, value) for name, value in out.items()]
    found = {name: value for name, value in pairs if name in arguments and value is not None}
    return [*([""] if all(map(_plain, found.values())) else []), *found]


def _plain(value: Any) -> bool:
    """Whether an object is a cache of the layers that Transformers has for all models."""
    return type(value) is DynamicCache and all(
        type(layer).__module__ == DynamicCache.__module__ for layer in value.layers
    )


@dataclass(frozen=True, slots=True)
class Place:
    """An object that keeps states in some attributes: `fresh` has those of a text that has not begun."""

    holder: Any
    fresh: dict[str, Any]


def states_of(cache: RowCache) -> list[StateLayer]:
    return [layer for layer in cache.rows if isinstance(layer, StateLayer)]


def in_modules(model: Any) -> list[Place]:
    """The states that a model keeps in its own modules: tensors that a pass over two tokens changes."""
    ids = torch.zeros((1, 2), dtype=torch.long, device=model.get_input_embeddings().weight.device)
    before = {module: _tensors(module) for module in model.modules()}
    model(input_ids=ids, use_cache=True)
    found = []
    for module, old in before.items():
        new = _tensors(module)
        names = [name for name, value in new.items() if old.get(name) is not value]
        if names:
            found.append(Place(module, dict.fromkeys(names)))
    return found


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}


def taken(places: list[Place]) -> Values:
    return [{name: getattr(place.holder, name) for name in place.fresh} for place in places]


def put(places: list[Place], values: Values | None) -> None:
    """Put states into their places; None: those of a text that has not begun."""
    for at, place in enumerate(places):
        for name, value in (copied(place.fresh) if values is None else values[at]).items():
            setattr(place.holder, name, value)


def mapped(change: Callable[..., Any], *values: Any) -> Any:
    """A copy of values that are alike, with `change` of their tensors in place of these.

    Tensors are looked for in collections, and in the attributes of objects.

    Raises:
        ValueError: they differ by more than tensors.
    """
    one = values[0]
    if isinstance(one, Tensor):
        return change(*values)
    if isinstance(one, dict):
        return {key: mapped(change, *(value[key] for value in values)) for key in one}
    if isinstance(one, (list, tuple)):
        return type(one)(mapped(change, *parts) for parts in zip(*values, strict=True))
    if not hasattr(one, "__dict__") or isinstance(one, (PreTrainedConfig, nn.Module, type)):
        if any(value != one for value in values[1:]):
            raise ValueError(f"the states of two texts differ by more than tensors: {one!r}")
        return one
    made = copy.copy(one)
    vars(made).update(mapped(change, *map(vars, values)))
    return made


def copied(value: Any) -> Any:
    return mapped(Tensor.clone, value)


def merged(values: Sequence[Any]) -> Any:
    """The states of several rows as those of one batch, which share no tensor with them.

    Raises:
        ValueError: a tensor has no row of its own for each text, or the states differ by more than tensors.
    """

    def batch(*parts: Tensor) -> Tensor:
        if any(part.shape[:1] != (1,) for part in parts):
            raise ValueError("a state is not kept by row")
        return torch.cat(parts)

    return mapped(batch, *values)


def nth(value: Any, row: int) -> Any:
    return mapped(lambda part: part[row : row + 1], value)


def tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(found.append, value)
    return found


BROKEN = 1 << 60  # a pass that failed may have changed a part of the states


@dataclass(slots=True)
class RowState:
    """One row's states, and a snapshot of them at an earlier place of its text.

    `tokens` are those of the row so far, of which the states have read the first `at`, and the snapshot the
    first `saved_at`; None stands for a text that has not begun. `guessed`: some of them may be taken back.
    """

    tokens: list[int] = field(default_factory=list)
    live: Values | None = None
    at: int = 0
    saved: Values | None = None
    saved_at: int = 0
    guessed: bool = False

    def rewind(self, length: int) -> list[int]:
        """Forget all tokens but the first `length`; returns those of them that must be read again."""
        if self.at > length:
            if self.saved_at > length:
                self.saved, self.saved_at = None, 0
            self.live, self.at, self.guessed = copied(self.saved), self.saved_at, False
        del self.tokens[length:]
        return self.tokens[self.at :]

    def save(self) -> None:
        """Take a snapshot, unless there may be guesses in the states."""
        if not self.guessed and self.at != self.saved_at:
            self.saved, self.saved_at = copied(self.live), self.at

    def part(self, length: int) -> RowState:
        """A copy that has read as many of the first `length` tokens as the states or the snapshot have."""
        options = [(at, values) for at, values in ((self.at, self.live), (self.saved_at, self.saved))]
        at, values = max((o for o in options if o[0] <= length), key=lambda o: o[0], default=(0, None))
        return RowState(self.tokens[:at], copied(values), at)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in tensors([self.live, self.saved]))

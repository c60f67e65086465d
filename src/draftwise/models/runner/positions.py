"""The longest position of a model, and the lengths at which its rotary frequencies change.

Some models (LongRoPE, dynamic NTK) use other frequencies from a certain length on, here called the border.
The borders are found by calling the modules that receive the model's position ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache, CacheLayerMixin

from ..cache_names import name_for

ENDLESS = 1 << 30
aten: Any = torch.ops.aten


def nothing() -> None:
    """`forget` of a model whose modules keep no state."""


@dataclass(slots=True)
class Rope:
    """The text lengths at which the rotary frequencies change, called borders.

    Texts longer than a border use other frequencies. Beyond `moving` tokens each length has frequencies of
    its own. With `anew` the model's own decoding recomputes the whole text when it crosses a border;
    otherwise the cached keys retain their frequencies.
    """

    borders: tuple[int, ...] = ()
    moving: int = ENDLESS
    anew: bool = False
    forget: Callable[[], None] = nothing

    def regime(self, length: int) -> int:
        """A number that identifies the frequencies used for a text of this length."""
        return length if length > self.moving else bisect_left(self.borders, length)

    def last(self, length: int) -> int:
        """The longest text with the same frequencies as one of this length."""
        if length > self.moving:
            return length
        after = bisect_left(self.borders, length)
        return self.borders[after] if after < len(self.borders) else ENDLESS


class PositionWatch:
    """Records the modules without weights that receive position ids, while this context is active.

    `places` are the positions of the pass, one token each.
    """

    def __init__(self, model: Any, places: list[int]) -> None:
        self.model = model
        self.places = torch.tensor(places)
        self.calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        self.hooks: list[RemovableHandle] = []

    def __enter__(self) -> PositionWatch:
        for module in self.model.modules():
            if next(module.parameters(), None) is None:
                self.hooks.append(module.register_forward_pre_hook(self._note, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _note(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if any(self._tells(x) for x in (*inputs, *named.values())):
            self.calls.append((module, inputs, named))

    def _tells(self, x: Any) -> bool:
        if not isinstance(x, Tensor) or x.is_floating_point() or x.dim() == 0:
            return False
        n = len(self.places)
        return x.shape[-1] == n and bool((x.reshape(-1, n).cpu() == self.places).all())

    def _called(self, last: int) -> list[Tensor]:
        """The outputs of the recorded modules at all positions but the last, which is `last`."""

        def swapped(x: Any) -> Any:
            if not self._tells(x):
                return x
            new = x.clone()
            new[..., -1] = last
            return new

        said: list[Tensor] = []
        n = len(self.places)
        for module, inputs, named in self.calls:
            out = module(*map(swapped, inputs), **{k: swapped(x) for k, x in named.items()})
            tensors = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
            said += [x[..., :-1, :].clone() for x in tensors if x.dim() > 1 and x.shape[-2] == n]
        return said

    @torch.no_grad()
    def forget(self) -> None:
        """Make the modules forget the longest text so far, by a call with a short one."""
        self._called(len(self.places) - 1)

    @torch.no_grad()
    def rope(self, longest: int) -> Rope:
        """The borders up to texts of `longest` tokens, found by bisection."""

        def said(length: int) -> list[Tensor]:
            self.forget()
            return self._called(length - 1)

        def same(a: list[Tensor], b: list[Tensor]) -> bool:
            return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

        borders: list[int] = []
        moving, low = ENDLESS, len(self.places)
        while not same(now := said(low), said(longest)) and moving == ENDLESS:
            high = longest
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if same(now, said(middle)) else (low, middle)
            borders.append(low)
            if not same(said(high), said(high + 1)):
                moving = low
            low = high
        self.forget()
        if not borders:
            return Rope()
        anew = _reads_anew(self.model, borders[0])
        return Rope(tuple(borders), moving, anew, self.forget if moving < ENDLESS else nothing)


class PretendedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """A cache layer that reports `length` cached tokens; keys and values are zeros, made for each pass."""

    is_sliding = False

    def __init__(self, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = length
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is stored."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """The pass's own keys and values after `length` zeros, shape (rows, heads, tokens, head size)."""
        both = (nn.functional.pad(new, (0, 0, self.length, 0)) for new in (key_states, value_states))
        return next(both), next(both)

    def update_index(self, states: Tensor) -> Tensor:
        return nn.functional.pad(states, (0, 0, self.length, 0))

    update_indexer = update_index

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def pretended(length: int, layers: int = 1) -> Cache:
    """A cache that reports `length` tokens but stores none."""
    return Cache(layers=[PretendedLayer(length) for _ in range(layers)])


def _reads_anew(model: Any, border: int) -> bool:
    """Whether the model's own decoding recomputes a text that has just crossed a border."""
    ids = torch.zeros((1, border + 1), dtype=torch.long, device=model.device)
    prepare = model.prepare_inputs_for_generation
    asked = prepare(
        ids,
        attention_mask=torch.ones_like(ids),
        use_cache=True,
        next_sequence_length=1,
        **{name_for(prepare): pretended(border)},
    )
    return int(asked["input_ids"].shape[1]) > 1


class Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """Raises IndexError for a look-up outside a table on any device; on a GPU it would abort the process."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pairs: list[tuple[int, Any]] = []
        if func.overloadpacket is aten.embedding:
            pairs = [(args[0].shape[0], args[1])]
        elif func.overloadpacket is aten.index:
            pairs = list(zip(args[0].shape, args[1], strict=False))
        elif func.overloadpacket in (aten.index_select, aten.gather, aten.scatter, aten.scatter_):
            pairs = [(args[0].shape[args[1]], args[2])]
        for size, at in pairs:
            if at is not None and at.dtype != torch.bool and at.numel() and int(at.max()) >= size:
                raise IndexError(f"position {int(at.max())} in a table of {size}")
        return func(*args, **(kwargs or {}))

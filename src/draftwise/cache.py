"""A Transformers cache for many texts of different lengths: token t of a text lies in slot t of its row.

A pass writes its tokens after the valid ones of each row and sees slot j from position p where j <= p, so
whatever lies beyond a row's length is invisible. Rewinding is forgetting a number: no holes, no copying,
no compaction, and sliding-window layers rewind like any other since they keep every token and mask the
old ones. Only a tree leaves its accepted tokens apart: they are moved to their own slots after the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

ROUND_SLOTS = 64


@dataclass(slots=True)
class Plan:
    """Where the next pass writes: rows `first` to `last` (exclusive), `width` tokens each, seeing slots 0 to
    `total` (exclusive). All rows write from slot `start` on when `even`, else where `index` says. `capacity`
    and `slots` are the rows and slots to have."""

    first: int = 0
    last: int = 1
    width: int = 0
    total: int = 0
    slots: int = 0
    capacity: int = 1
    start: int = 0
    even: bool = True
    index: dict[torch.device, Tensor] = field(default_factory=dict)

    def flat(self, device: torch.device) -> Tensor:
        """Row-major positions of an uneven pass in a buffer of `slots` slots a row, shape (rows * width,)."""
        if device not in self.index:
            self.index[device] = next(iter(self.index.values())).to(device)
        return self.index[device]


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """Keys and values of one layer, shape (rows, slots, heads, head size); there from the first pass on."""

    keys: Tensor
    values: Tensor
    is_sliding = False
    is_croppable = True

    def __init__(self, plan: Plan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.plan = plan

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate what the plan asks for; states have the shape (rows, heads, width, head size)."""
        self.keys, self.values = (
            new.new_zeros(0, 0, new.shape[1], new.shape[3]) for new in (key_states, value_states)
        )
        self.is_initialized = True
        self.grow()

    def grow(self) -> None:
        """Have the rows and slots that the plan asks for, and in them what was held before."""
        self.keys, self.values = self._grown(self.keys), self._grown(self.values)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the pass and return all that it may see, shape (rows, heads, total, head size)."""
        plan = self.plan
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.keys.shape[0] < plan.capacity or self.keys.shape[1] < plan.slots:
            self.grow()
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, held: Tensor, new: Tensor) -> Tensor:
        plan, new = self.plan, new.transpose(1, 2)
        if plan.even:
            held[plan.first : plan.last, plan.start : plan.start + plan.width] = new
        else:
            held.flatten(0, 1).index_copy_(0, plan.flat(held.device), new.flatten(0, 1))
        return held[plan.first : plan.last, : plan.total].transpose(1, 2)

    def _grown(self, held: Tensor) -> Tensor:
        """What was held, amid zeros: a hidden NaN would still spread."""
        rows, slots = held.shape[:2]
        grown = held.new_zeros(max(self.plan.capacity, rows), max(self.plan.slots, slots), *held.shape[2:])
        grown[:rows, :slots] = held
        return grown

    def copy_row(self, source: int, destination: int, length: int) -> None:
        """Make the first `length` slots of one row those of another."""
        for held in self._holding(source, destination):
            held[destination, :length] = held[source, :length]

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` slots of two rows."""
        for held in self._holding(a, b):
            held[[a, b], :length] = held[[b, a], :length]

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy slots to others, both row-major positions, shape (n,); all are read before any is written."""
        for held in (self.keys, self.values):
            flat = held.flatten(0, 1)
            flat.index_copy_(0, destination.to(held.device), flat[source.to(held.device)])

    def _holding(self, a: int, b: int) -> tuple[Tensor, ...]:
        """Keys and values, with room for both rows; nothing before the first pass."""
        if not self.is_initialized:
            return ()
        if len(self.keys) <= max(a, b):  # a row that was opened after the last pass
            self.grow()
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots seen, and the first of them."""
        return self.plan.total, 0

    def get_seq_length(self) -> int:
        """Tokens before the pass (of the longest row)."""
        return self.plan.total - self.plan.width

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1


class RowCache(Cache):
    """The layers of one model; they all follow the same plan."""

    def __init__(self) -> None:
        self._rows: list[RowLayer] = []
        layers: Any = self._rows  # the list that Transformers knows as `layers`
        super().__init__(layers=layers)
        self.plan = Plan()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one layer and return all that the pass may see."""
        while len(self._rows) <= layer_idx:
            self._rows.append(RowLayer(self.plan))
        return self._rows[layer_idx].update(key_states, value_states)

    def schedule(
        self, first: int, starts: list[int], width: int, *, even: bool, rows: int, slots: int
    ) -> int:
        """Plan the next pass, for rows from `first` on, in a cache of `rows` rows.

        Returns the number of slots that it sees.
        """
        plan = self.plan
        plan.first, plan.last = first, first + len(starts)
        plan.start, plan.width, plan.even = starts[0], width, even
        plan.total = width + (starts[0] if even else max(starts))
        if rows > plan.capacity:
            self._reserve(rows)
        need = max(plan.total, slots)
        if need > plan.slots:
            plan.slots = -(-need // ROUND_SLOTS) * ROUND_SLOTS
        return plan.total

    def place(self, at: NDArray[np.int64], device: torch.device) -> None:
        """Say where an uneven pass writes: slot `at[i, j]` of row `first + i`, shape (rows, width)."""
        plan = self.plan
        rows = np.arange(plan.first, plan.last)[:, None] * plan.slots
        plan.index = {device: torch.from_numpy((at + rows).ravel()).to(device)}

    @torch.inference_mode()
    def copy_row(self, source: int, destination: int, length: int) -> None:
        """Make the first `length` tokens of one row those of another."""
        self._reserve(max(source, destination) + 1)
        for layer in self._rows:
            layer.copy_row(source, destination, length)

    @torch.inference_mode()
    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` tokens of two rows."""
        self._reserve(max(a, b) + 1)
        for layer in self._rows:
            layer.swap_rows(a, b, length)

    @torch.inference_mode()
    def move(self, moves: Sequence[tuple[int, int, int]], device: torch.device) -> None:
        """Copy slots within their rows: (row, source, destination) each; sources are read first."""
        row, source, destination = np.asarray(moves).T
        flat = torch.from_numpy(np.stack([source, destination]) + row * self.plan.slots).to(device)
        for layer in self._rows:
            layer.move(flat[0], flat[1])

    def _reserve(self, rows: int) -> None:
        if rows > self.plan.capacity:
            self.plan.capacity = 1 << (rows - 1).bit_length()

    @property
    def bytes(self) -> int:
        """Memory held, in bytes."""
        held = [t for layer in self._rows if layer.is_initialized for t in (layer.keys, layer.values)]
        return sum(t.numel() * t.element_size() for t in held)

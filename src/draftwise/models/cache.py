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

from ..errors import UserError

ROUND_SLOTS = 64
FIRST_SLOTS = 256  # room from the start on, so that short texts are never copied; from there it doubles


@dataclass(slots=True)
class Plan:
    """Where the next pass writes: rows `first` to `last` (exclusive), `width` tokens each, seeing slots 0 to
    `total` (exclusive). All rows write from slot `start` on when `even`, else where `index` says. `capacity`
    and `slots` are the rows and slots to have, `most` the slots that the texts may come to need. In a `tree`
    a token's slot is not its position."""

    first: int = 0
    last: int = 1
    width: int = 0
    total: int = 0
    slots: int = 0
    most: int = 0
    capacity: int = 1
    start: int = 0
    even: bool = True
    tree: bool = False
    index: dict[torch.device, Tensor] = field(default_factory=dict)

    def flat(self, device: torch.device) -> Tensor:
        """Row-major positions of an uneven pass in a buffer of `slots` slots a row, shape (rows * width,)."""
        if device not in self.index:
            self.index[device] = next(iter(self.index.values())).to(device)
        return self.index[device]


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """Keys and values of one layer, shape (rows, slots, heads, head size); there from the first pass on.

    `more` has what else the layer keeps of every token, shape (rows, slots, ...): the keys of an indexer that
    chooses what sparse attention sees. It lies in the same slots, and so is rewound, shared and moved alike.
    """

    keys: Tensor
    values: Tensor
    is_sliding = False
    is_croppable = True

    def __init__(self, plan: Plan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.plan = plan
        self.more: dict[str, Tensor] = {}

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
        self.more = {name: self._grown(held) for name, held in self.more.items()}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the pass and return all that it may see, shape (rows, heads, total, head size)."""
        plan = self.plan
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.keys.shape[0] < plan.capacity or self.keys.shape[1] < plan.slots:
            self.grow()
        keys = self._write(self.keys, key_states.transpose(1, 2))
        return keys.transpose(1, 2), self._write(self.values, value_states.transpose(1, 2)).transpose(1, 2)

    def keep(self, name: str, states: Tensor) -> Tensor:
        """Write something else of the pass's tokens, shape (rows, width, ...).

        Returns all of it that the pass may see, shape (rows, total, ...).
        """
        held = self.more.get(name)
        if held is None:
            held = states.new_zeros(0, 0, *states.shape[2:])
        if held.shape[0] < self.plan.capacity or held.shape[1] < self.plan.slots:
            held = self.more[name] = self._grown(held)
        return self._write(held, states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """What DeepSeek's sparse attention keeps, shape (rows, width, size)."""
        return self.keep("indexer", indexer_key_states)

    def update_index(self, idx_k: Tensor) -> Tensor:
        """What MiniMax's sparse attention keeps, shape (rows, heads, width, size).

        It chooses blocks of slots, and takes a token's position for its slot.

        Raises:
            UserError: the pass reads a tree.
        """
        if self.plan.tree:
            raise UserError(
                "this model's sparse attention counts blocks of tokens in a row, so it cannot read a tree of "
                "drafted tokens: use a policy that drafts chains"
            )
        return self.keep("index", idx_k.transpose(1, 2)).transpose(1, 2)

    def _write(self, held: Tensor, new: Tensor) -> Tensor:
        plan = self.plan
        if plan.even:
            held[plan.first : plan.last, plan.start : plan.start + plan.width] = new
        else:
            held.flatten(0, 1).index_copy_(0, plan.flat(held.device), new.flatten(0, 1))
        return held[plan.first : plan.last, : plan.total]

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
        for held in self.tensors:
            flat = held.flatten(0, 1)
            flat.index_copy_(0, destination.to(held.device), flat[source.to(held.device)])

    @property
    def tensors(self) -> list[Tensor]:
        """All that is held; nothing before the first pass."""
        main = [self.keys, self.values] if self.is_initialized else []
        return [*main, *self.more.values()]

    def _holding(self, a: int, b: int) -> list[Tensor]:
        """All that is held, with room for both rows."""
        if self.is_initialized and len(self.keys) <= max(a, b):  # a row that was opened after the last pass
            self.grow()
        return self.tensors

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
    """The layers of one model; they all follow the same plan.

    The first `depth` are there from the start, for models that ask a layer itself; others come as they write.
    """

    def __init__(self, depth: int = 0) -> None:
        self.plan = Plan()
        self.counted = False
        self._rows = [RowLayer(self.plan) for _ in range(depth)]
        layers: Any = self._rows  # the list that Transformers knows as `layers`
        super().__init__(layers=layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one layer and return all that the pass may see."""
        while len(self._rows) <= layer_idx:
            self._rows.append(RowLayer(self.plan))
        return self._rows[layer_idx].update(key_states, value_states)

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """Tokens before the pass; noted where a layer asks though rows have several lengths, or a tree none.

        A layer that is given positions and masks, and still asks, counts positions by itself (Llama 4's
        temperature tuning).
        """
        if layer_idx is not None and (self.plan.tree or not self.plan.even):
            self.counted = True
        return int(super().get_seq_length(layer_idx or 0))

    def schedule(
        self,
        first: int,
        starts: list[int],
        width: int,
        *,
        even: bool,
        rows: int,
        slots: int,
        tree: bool = False,
    ) -> int:
        """Plan the next pass, for rows from `first` on, in a cache of `rows` rows.

        Rows grow twofold when they are full, up to the `slots` that the texts may need (0: as said before).
        Returns the number of slots that the pass sees.
        """
        plan = self.plan
        plan.first, plan.last = first, first + len(starts)
        plan.start, plan.width, plan.even, plan.tree = starts[0], width, even, tree
        plan.total = width + (starts[0] if even else max(starts))
        if rows > plan.capacity:
            self._reserve(rows)
        plan.most = slots or plan.most
        if plan.total > plan.slots:
            need = max(plan.total, min(max(2 * plan.total, FIRST_SLOTS), plan.most))
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
        return sum(t.numel() * t.element_size() for layer in self._rows for t in layer.tensors)

"""A Transformers KV cache for texts of different lengths: token t of a text is stored in slot t of its row.

A pass writes its tokens after the valid ones of each row, and a token at position p attends to slot j if j <=
p, so slots beyond a row's length are invisible. Rollback only lowers a row's length: no holes, no copying, no
compaction. Sliding-window layers roll back like all others, since they keep every token and mask the old
ones. Only trees leave their accepted tokens scattered: these are moved to their own slots after the pass.
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

from ...errors import UserError

ROUND_SLOTS = 64
FIRST_SLOTS = 256  # initial size, so that short texts are never copied; doubled when full
KEPT = 1 << 26  # bytes that stay allocated without a text, on a CPU: a GPU's memory is pooled by PyTorch


@dataclass(slots=True)
class Plan:
    """Where the next pass writes: rows `first` to `last` (exclusive), `width` tokens each, attending to slots
    0 to `total` (exclusive). If `even`, all rows write from slot `start` on, otherwise to the slots `at`,
    shape (rows, width). `capacity` and `slots` are to be allocated, `most` may finally be needed. In a `tree`
    slots are no positions. `buffers` counts how often any layer's tensors were replaced; `is_fixed`: they are
    not given up while no text is open; `is_torn`: a layer found no memory to grow, after others had grown."""

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
    buffers: int = 0
    is_fixed: bool = False
    is_torn: bool = False
    at: NDArray[np.int64] = field(default_factory=lambda: np.zeros((1, 0), np.int64))
    index: dict[tuple[torch.device, int], Tensor] = field(default_factory=dict)

    def place(self, at: NDArray[np.int64]) -> None:
        """Set where an uneven pass writes: slot `at[i, j]` of row `first + i`, shape (rows, width)."""
        self.at, self.index = at, {}

    def flat(self, device: torch.device, heads: int) -> Tensor:
        """Where an uneven pass writes, as indices of a flat (rows, heads, slots): rows * heads * width."""
        if (device, heads) not in self.index:
            lines = np.arange(self.first * heads, self.last * heads).reshape(-1, heads, 1) * self.slots
            index = torch.from_numpy((lines + self.at[:, None]).ravel())
            self.index[device, heads] = index.to(device, non_blocking=True)
        return self.index[device, heads]


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """Keys and values of one layer, shape (rows, heads, slots, head size); allocated in the first pass.

    What a head reads lies side by side: on a CPU, attention over many rows takes 0.7 to 0.8 of the time that
    it takes if the heads of a token lie side by side.

    `more` holds other per-token states of the layer in the same shape, such as the keys of an indexer for
    sparse attention. They use the same slots, and so are rolled back, shared and moved in the same way.
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
        """Allocate for such states, of shape (rows, heads, width, head size)."""
        self.keys, self.values = key_states[:0, :, :0], value_states[:0, :, :0]
        self.is_initialized = True
        self.grow()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """Have room for the plan; `shape` are the heads and head size of keys and of values."""
        if self.is_initialized:
            self.grow_to_plan()
        else:
            sizes = (0, shape[0], 0, shape[1]), (0, shape[2], 0, shape[3])
            self.lazy_initialization(*(torch.zeros(size, dtype=dtype, device=device) for size in sizes))

    def grow(self) -> None:
        """Enlarge to the rows and slots of the plan, keeping the contents."""
        self.plan.buffers += 1
        self.keys, self.values = self._grown(self.keys), self._grown(self.values)
        self.more = {name: self._grown(held) for name, held in self.more.items()}

    def grow_to_plan(self) -> None:
        """Enlarge if any tensor has fewer rows or slots than the plan."""
        if any(map(self._is_small, self.tensors)):
            self.grow()

    def _is_small(self, held: Tensor) -> bool:
        return held.shape[0] < self.plan.capacity or held.shape[2] < self.plan.slots

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the pass's tokens and return all visible slots, shape (rows, heads, total, head size)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self._is_small(self.keys):
            self.grow()
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def keep(self, name: str, states: Tensor) -> Tensor:
        """Write other states of the pass's tokens, shape (rows, heads, width, size).

        Returns the states of all visible slots, shape (rows, heads, total, size).
        """
        if name not in self.more:
            self.more[name] = states.new_zeros(0, states.shape[1], 0, states.shape[3])
        stored = self.more[name]
        if self._is_small(stored):
            stored = self.more[name] = self._grown(stored)
        return self._write(stored, states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Store the states of DeepSeek's sparse attention, shape (rows, width, size)."""
        return self.keep("indexer", indexer_key_states[:, None])[:, 0]

    def update_index(self, idx_k: Tensor) -> Tensor:
        """Store the states of MiniMax's sparse attention, shape (rows, heads, width, size).

        This attention selects blocks of slots, and assumes that a token's position is its slot.

        Raises:
            UserError: the pass reads a tree.
        """
        if self.plan.tree:
            raise UserError(
                "this model's sparse attention counts blocks of tokens in a row, so it cannot read a tree of "
                "drafted tokens: use a policy that drafts chains"
            )
        return self.keep("index", idx_k)

    def _write(self, held: Tensor, new: Tensor) -> Tensor:
        plan = self.plan
        if plan.even:
            held[plan.first : plan.last, :, plan.start : plan.start + plan.width] = new
        else:
            held.flatten(0, 2).index_copy_(0, plan.flat(held.device, held.shape[1]), new.flatten(0, 2))
        return held[plan.first : plan.last, :, : plan.total]

    def _grown(self, held: Tensor) -> Tensor:
        """The contents in a larger tensor, filled with zeros: a NaN would spread even from masked slots."""
        rows, heads, slots, size = held.shape
        self.plan.is_torn = True
        grown = held.new_zeros(max(self.plan.capacity, rows), heads, max(self.plan.slots, slots), size)
        grown[:rows, :, :slots] = held
        self.plan.is_torn = False
        return grown

    def shrink(self, rows: int, slots: int) -> None:
        """Keep only the first rows and slots, in tensors of that size."""

        def cut(held: Tensor) -> Tensor:
            is_larger = held.shape[0] > rows or held.shape[2] > slots
            return held[:rows, :, :slots].clone(memory_format=torch.contiguous_format) if is_larger else held

        if self.is_initialized:
            self.keys, self.values = cut(self.keys), cut(self.values)
        self.more = {name: cut(held) for name, held in self.more.items()}
        self.plan.buffers += 1

    @property
    def named(self) -> dict[str, Tensor]:
        """All stored tensors by name; empty before the first pass."""
        main = {"keys": self.keys, "values": self.values} if self.is_initialized else {}
        return main | self.more

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.named.values()]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.plan.total, 0

    def get_seq_length(self) -> int:
        return self.plan.total - self.plan.width

    def get_max_length(self) -> int:
        return -1


class RowCache(Cache):
    """The layers of one model, which share one plan.

    The first `depth` layers exist from the start, for models that access a layer directly; others are added
    when they first write. `lengths` are those of its rows at any time.
    """

    def __init__(self, depth: int = 0, lengths: Sequence[int] = ()) -> None:
        self.plan, self.lengths = Plan(), lengths
        self.written: list[int] = []  # slots of each row from which on it holds zeros, or what is finite
        self.counted = False
        self.slices: tuple[tuple[int, ...], list[Tensor]] | None = None  # of the latest compiled pass
        self._rows = [RowLayer(self.plan) for _ in range(depth)]
        layers: Any = self._rows  # the list that Transformers calls `layers`
        super().__init__(layers=layers)

    @property
    def rows(self) -> Sequence[RowLayer]:
        return self._rows

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return self.layer(layer_idx).update(key_states, value_states)

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """Tokens before the pass. Sets `counted` if a layer asks while rows differ in length, or in a tree.

        A layer that receives positions and masks, and still asks, counts positions by itself (Llama 4's
        temperature tuning).
        """
        if layer_idx is not None and (self.plan.tree or not self.plan.even):
            self.counted = True
        return self.plan.total - self.plan.width

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

        Full rows double in size, up to the `slots` that the texts may need. Returns the number of slots
        visible in the pass.
        """
        plan = self.plan
        plan.first, plan.last = first, first + len(starts)
        plan.start, plan.width, plan.even, plan.tree = starts[0], width, even, tree
        plan.total = width + (starts[0] if even else max(starts))
        self.ready(rows, plan.total, slots)
        for row, start in enumerate(starts, first):
            self.note(row, start + width)
        return plan.total

    def note(self, row: int, end: int) -> None:
        """Remember that slots of a row are written, up to `end`."""
        self.written += [0] * (row + 1 - len(self.written))
        self.written[row] = max(self.written[row], end)

    @torch.inference_mode()
    def erase(self, row: int, start: int = 0) -> None:
        """Fill what was written of a row with zeros, from slot `start` on: a NaN would spread to what is read
        next, even from masked slots."""
        self.note(row, start)
        # What a graph on a device writes is padded, and is planned for its first token alone.
        end = None if self.plan.is_fixed else self.written[row]
        for layer in self._rows:
            for held in layer.tensors:
                held[row : row + 1, :, start:end].zero_()
        self.written[row] = start

    @torch.inference_mode()
    def copy_row(self, source: int, destination: int, length: int) -> None:
        for held in self._tensors(max(source, destination)):
            held[destination, :, :length] = held[source, :, :length]
        self.note(destination, length)

    @torch.inference_mode()
    def swap_rows(self, a: int, b: int, length: int) -> None:
        for held in self._tensors(max(a, b)):  # a list of rows would make the host wait for a GPU
            one, other = held[a, :, :length], held[b, :, :length]
            before = one.clone()
            one.copy_(other)
            other.copy_(before)
        for row in (a, b):
            self.note(row, length)

    @torch.inference_mode()
    def move(self, moves: Sequence[tuple[int, int, int]], device: torch.device) -> None:
        """Copy slots within their rows: (row, source, destination) each; sources are read first."""
        each = torch.from_numpy(np.asarray(moves).T.copy()).to(device, non_blocking=True)
        for held in self._tensors(0):
            row, source, destination = each.to(held.device)
            held[row, :, destination] = held[row, :, source]

    def _tensors(self, row: int) -> list[Tensor]:
        """All stored tensors, with room for this row, which may have been opened after the last pass."""
        self._reserve(row + 1)
        for layer in self._rows:
            layer.grow_to_plan()
        return [tensor for layer in self._rows for tensor in layer.tensors]

    def ready(self, rows: int, total: int, slots: int) -> None:
        """Plan room for `total` tokens in each of so many rows, which may grow to `slots` (0: unchanged)."""
        self._reserve(rows)
        plan = self.plan
        plan.most = slots or plan.most
        if total > plan.slots:
            need = max(total, min(max(2 * total, FIRST_SLOTS), plan.most))
            plan.slots = -(-need // ROUND_SLOTS) * ROUND_SLOTS

    def fix(self, rows: int, slots: int) -> None:
        """Let every layer allocate so many rows and slots at once, and keep its tensors from then on.

        They move only if a text outgrows them, which `Plan.buffers` counts.
        """
        self._reserve(rows)
        self.plan.slots, self.plan.is_fixed = max(self.plan.slots, slots), True

    def layer(self, at: int) -> RowLayer:
        while len(self._rows) <= at:
            self._rows.append(RowLayer(self.plan))
        return self._rows[at]

    def _reserve(self, rows: int) -> None:
        if self.plan.is_torn:
            self._mend()
        if rows > self.plan.capacity:
            self.plan.capacity = 1 << (rows - 1).bit_length()

    @torch.inference_mode()
    def _mend(self) -> None:
        """Take back a growth that not all layers found memory for: texts that need none of it continue.

        Where none has been read, a layer may have found no memory for its first tensors: then all give theirs
        up.
        """
        plan, is_empty = self.plan, not any(self.lengths)
        shapes = [held.shape for layer in self._rows for held in layer.tensors if is_empty or len(held)]
        plan.capacity, plan.slots = (min(shape[at] for shape in shapes) for at in (0, 2))
        for layer in self._rows:
            layer.shrink(plan.capacity, plan.slots)
        plan.is_torn = False

    @torch.inference_mode()
    def clear(self) -> bool:
        """Forget the last pass; returns whether the next text can use what is allocated, which saves a short
        one 5 % of its time.

        It has to be small, and free of NaN and infinities, which spread even from masked slots. Fixed tensors
        are always used again.
        """
        self.plan.place(np.zeros((1, 0), np.int64))
        self.written.clear()
        tensors = [tensor for layer in self._rows for tensor in layer.tensors]
        if self.plan.is_fixed:
            for tensor in tensors:
                tensor.zero_()
            return True
        near = all(tensor.device.type == "cpu" for tensor in tensors)
        return near and self.bytes <= KEPT and all(bool(tensor.sum().isfinite()) for tensor in tensors)

    @property
    def shapes(self) -> dict[int, tuple[int, int, int, int]]:
        """The heads and head size of keys, and those of values, of each layer that holds any."""
        used = {
            at: (layer.keys.shape, layer.values.shape)
            for at, layer in enumerate(self._rows)
            if layer.is_initialized
        }
        return {at: (keys[1], keys[3], values[1], values[3]) for at, (keys, values) in used.items()}

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for layer in self._rows for t in layer.tensors)

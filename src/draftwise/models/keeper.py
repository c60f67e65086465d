"""Keeps what the rows of a model hold of texts that have ended, and gives it to texts that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import UserError
from .cache import RowCache
from .hidden_states import Features
from .prefixes import LEAST, Parts, Piece, Prefixes, Tree
from .runner import Rows

Found = list[tuple[Piece, int]]
TAP = "states"
MEBIBYTE = 1 << 20
MOST = 1e12  # of them


@runtime_checkable
class Remembers(Protocol):
    """A target or drafter that can keep what it has read of texts that have ended."""

    def remember(self, prefixes: Prefixes) -> None: ...


def keep_prefixes(parts: Iterable[Any], mebibytes: float) -> None:
    """Let the models among a target and its drafters keep what they have read, all within this bound.

    Raises:
        UserError: the bound is no number from 0.
    """
    bounded(mebibytes)
    if mebibytes:
        prefixes = Prefixes(int(mebibytes * MEBIBYTE))
        for part in parts:
            if isinstance(part, Remembers):
                part.remember(prefixes)


def bounded(mebibytes: Any) -> None:
    """Raise a UserError unless this is a number of MiB."""
    if isinstance(mebibytes, bool) or not isinstance(mebibytes, (int, float)) or not 0 <= mebibytes <= MOST:
        raise UserError(f"prefix_cache={mebibytes!r}: give MiB of memory, or 0 to keep nothing")


class Keeper:
    """The prefixes of one model, whose rows hold keys and values alone: a state has no beginning.

    `taps` are the hidden states that drafters read; they are kept too.
    """

    def __init__(
        self, rows: Rows, prefixes: Prefixes, taps: Callable[[], Iterable[Features]] = tuple
    ) -> None:
        self.rows, self.prefixes, self.taps = rows, prefixes, taps
        self.tree = Tree(prefixes)

    @torch.inference_mode()
    def keep(self, key: int, tokens: Sequence[int], length: int, mark: Hashable = 0) -> None:
        """Keep the first `length` tokens of the text in the row of `key`."""
        row, taps = self.rows.keys.index(key), list(self.taps())
        length = min([length, *(tap.held(key) for tap in taps)])

        def take(start: int, end: int) -> Parts:
            states = {(TAP, k): tap.of(key, start, end).clone() for k, tap in enumerate(taps)}
            return taken(self.rows.cache, row, start, end) | states

        if length >= LEAST:
            self.tree.add(mark, tokens[:length], take)

    def find(self, tokens: Sequence[int], mark: Hashable = 0) -> Found:
        """What is kept of the beginning of a text; `length` tells how much that is."""
        return self.tree.find(mark, tokens)

    @torch.inference_mode()
    def revive(self, key: int, found: Found, slots: int) -> None:
        """Put what was found into the empty row of `key`, whose text may grow to `slots` tokens."""
        row, at, total = self.rows.keys.index(key), 0, length(found)
        self.rows.cache.ready(len(self.rows.keys), total, slots)
        for piece, n in found:
            put(self.rows.cache, row, at, {name: part[:n] for name, part in piece.parts.items()})
            for k, tap in enumerate(self.taps()):
                tap.put(key, at, piece.parts[TAP, k][:n])
            at += n
        self.rows.held[row] = total
        self.prefixes.touch([piece for piece, _ in found])


def length(found: Found) -> int:
    """How many tokens were found."""
    return sum(n for _, n in found)


def taken(cache: RowCache, row: int, start: int, end: int) -> Parts:
    """A copy of what a row holds of some tokens, shape (tokens, heads, size), by layer and name."""

    def copied(held: Tensor) -> Tensor:
        return held[row, :, start:end].transpose(0, 1).clone(memory_format=torch.contiguous_format)

    found: Parts = {}
    for at, layer in enumerate(cache.rows):
        if layer.is_initialized:
            found |= {(at, name): copied(getattr(layer, name)) for name in ("keys", "values")}
        found |= {(at, name): copied(held) for name, held in layer.more.items()}
    return found


def put(cache: RowCache, row: int, start: int, parts: Parts) -> None:
    """Write what `taken` returned to the slots of a row from `start` on, which `ready` has made room for."""
    layers: dict[int, dict[str, Tensor]] = {}
    for (at, name), part in parts.items():
        if isinstance(at, int):
            layers.setdefault(at, {})[str(name)] = part
    for at, named in layers.items():
        layer = cache.layer(at)
        if "keys" in named and not layer.is_initialized:
            keys, values = named["keys"], named["values"]
            layer.allocate((*keys.shape[1:], *values.shape[1:]), keys.dtype, keys.device)
        for name in named.keys() - {"keys", "values"} - layer.more.keys():
            _, heads, size = named[name].shape
            layer.more[name] = named[name].new_zeros(0, heads, 0, size)
        plan = layer.plan
        if any(t.shape[0] < plan.capacity or t.shape[2] < plan.slots for t in layer.tensors):
            layer.grow()
        for name, part in named.items():
            held = getattr(layer, name) if name in ("keys", "values") else layer.more[name]
            held[row, :, start : start + len(part)] = part.transpose(0, 1)

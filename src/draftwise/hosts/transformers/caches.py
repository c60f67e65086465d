"""Transformers' caches: continuing from one, and filling one as plain decoding does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from ...errors import UserError
from ...models.cache_names import CACHE
from ...models.runner import Rows

LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)


@dataclass(slots=True)
class Held:
    """The keys and values of one row's first `length` tokens, by layer, shape (heads, length, head size)."""

    length: int = 0
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def cache(self) -> DynamicCache | None:
        """A new cache with this row alone, for one pass."""
        if not self.length:
            return None
        cache = DynamicCache()
        for at, (keys, values) in enumerate(self.layers):
            cache.update(keys[None], values[None], at)
        return cache

    @torch.inference_mode()
    def load(self, rows: Rows, key: int) -> None:
        """Copy them into the row of `key`, which must be empty."""
        if not self.length:
            return
        row = rows.keys.index(key)
        rows.cache.schedule(row, [0], self.length, even=True, rows=len(rows.keys), slots=self.length)
        for at, (keys, values) in enumerate(self.layers):
            rows.cache.update(keys[None], values[None], at)
        rows.held[row] = self.length


def held_rows(cache: Any, seen: Tensor) -> list[Held]:
    """The contents of `cache` for each row where `seen`, boolean, shape (rows, slots).

    Raises:
        UserError: a kind of cache that does not store keys and values as computed.
    """
    odd = [layer for layer in cache.layers if type(layer) not in LAYERS]
    if odd:
        raise UserError(
            f"{CACHE}: draftwise cannot continue from a {type(cache).__name__} with layers of "
            f"{type(odd[0]).__name__}; use a DynamicCache"
        )
    total = int(cache.get_seq_length())
    rows = [Held(int(own.sum())) for own in seen]
    for layer in cache.layers:
        keys, values = (_all(x, total)[..., : seen.shape[1], :] for x in (layer.keys, layer.values))
        for row, (held, own) in enumerate(zip(rows, seen.to(keys.device), strict=True)):
            held.layers.append((keys[row][:, own], values[row][:, own]))
    return rows


def _all(held: Tensor, total: int) -> Tensor:
    """All slots of a layer; dropped slots of a sliding window are filled, and never attended to."""
    held = held[..., :total, :]
    missing = total - held.shape[-2]
    return torch.cat([held.new_zeros(*held.shape[:-2], missing, held.shape[-1]), held], dim=-2)

"""Caches of Transformers: going on from one, and leaving one as plain decoding does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from ...rows import Rows

if TYPE_CHECKING:
    from .prompt import Prompt

LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)


@dataclass(slots=True)
class Held:
    """The keys and values of one row's first `length` tokens, by layer, shape (heads, length, head size)."""

    length: int = 0
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def cache(self) -> DynamicCache | None:
        """A cache of their own for a pass of this row alone."""
        if not self.length:
            return None
        cache = DynamicCache()
        for at, (keys, values) in enumerate(self.layers):
            cache.update(keys[None], values[None], at)
        return cache

    @torch.inference_mode()
    def load(self, rows: Rows, key: int) -> None:
        """Put them into the row of `key`, which must be empty."""
        if not self.length:
            return
        row = rows.keys.index(key)
        rows.cache.schedule(row, [0], self.length, even=True, rows=len(rows.keys), slots=self.length)
        for at, (keys, values) in enumerate(self.layers):
            rows.cache.update(keys[None], values[None], at)
        rows.held[row] = self.length


def held_rows(cache: Any, seen: Tensor) -> list[Held]:
    """What `cache` holds of each row where `seen`, boolean, shape (rows, slots).

    Raises:
        UserError: a kind of cache that does not keep keys and values as they were computed.
    """
    odd = [layer for layer in cache.layers if type(layer) not in LAYERS]
    if odd:
        raise UserError(
            f"past_key_values: draftwise cannot go on from a {type(cache).__name__} with layers of "
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
    """All slots of a layer: a window has forgotten the first ones, which are never looked at again."""
    held = held[..., :total, :]
    missing = total - held.shape[-2]
    return torch.cat([held.new_zeros(*held.shape[:-2], missing, held.shape[-1]), held], dim=-2)


def fill(model: Any, prompt: Prompt, sequences: Tensor, model_kwargs: Mapping[str, Any]) -> None:
    """Read what was written into the prompt's cache, so that it is as plain decoding leaves it: it holds all
    tokens but the last of every row, padding too. `sequences` are all ids, shape (rows, length)."""
    new = prompt.virtual + sequences.shape[1] - 1 - int(prompt.cache.get_seq_length())
    if new < 1:
        return
    if prompt.soft:
        model(input_ids=sequences[:, -new - 1 : -1], past_key_values=prompt.cache, use_cache=True)
        return
    kwargs = dict(model_kwargs) | {"past_key_values": prompt.cache}
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    total = prompt.virtual + sequences.shape[1] - 1
    if mask is not None:
        kwargs["attention_mask"] = torch.cat([mask, mask.new_ones(len(mask), total - mask.shape[1])], dim=1)
    if positions is not None:
        more = torch.arange(1, total + 1 - len(positions[0]), device=positions.device)
        kwargs["position_ids"] = torch.cat([positions, positions[:, -1:] + more], dim=1)
    fed = model.prepare_inputs_for_generation(
        sequences[:, :-1], next_sequence_length=new, is_first_iteration=False, **kwargs
    )
    model(**fed, return_dict=True)

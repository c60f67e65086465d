"""A `generate` call whose prompt is tokens alone: each row's own ones, and the target that reads them.

The processors that Transformers prepared decide each row's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from ...core.drafts import Draft
from ...core.request import Request
from ...core.roles import Scores
from ...errors import UserError
from ...models.cache_names import CACHE, NAMES, cache_in
from ...models.distributions import Chain
from ...models.runner import ModelRunner
from ...models.runner.recurrent import held_by
from ...targets.hf import HFTarget
from .prompted import FED, is_neutral
from .together import Padding, Steps, Together

LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
EMBEDS = "inputs_embeds"


@dataclass(slots=True)
class CachedRow:
    """The keys and values of one row's first `length` tokens, by layer, shape (heads, length, head size)."""

    length: int = 0
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def cache(self) -> DynamicCache | None:
        """Return a new cache with this row alone, for one pass."""
        if not self.length:
            return None
        cache = DynamicCache()
        for at, (keys, values) in enumerate(self.layers):
            cache.update(keys[None], values[None], at)
        return cache

    @torch.inference_mode()
    def load(self, runner: ModelRunner, key: int) -> None:
        """Copy them into the row of `key`, which must be empty."""
        if not self.length:
            return
        row = runner.request_ids.index(key)
        runner.cache.schedule(
            row, [0], self.length, even=True, rows=len(runner.request_ids), slots=self.length
        )
        for at, (keys, values) in enumerate(self.layers):
            runner.cache.update(keys[None], values[None], at)
        runner.cached_lengths[row] = self.length


@dataclass(slots=True)
class Prompt:
    """The rows before their first new token.

    `texts` are each row's tokens without padding; tokens that only a cache holds are 0 there. `cached` has
    the keys and values of the first of them, `virtual` the number of slots in `cache` without a token in
    `input_ids`. Some are `padded`.
    """

    texts: list[list[int]]
    cached: list[CachedRow]
    cache: Any = None
    virtual: int = 0
    padded: bool = False


def read_prompt(
    model: Any, input_ids: Tensor, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> Prompt | None:
    """Return the rows as plain decoding would read them, derived from the inputs it would pass to the model.

    None: they are not tokens alone, side by side at positions 0, 1, 2, ... of each row, so that only the
    model knows how to read them (see `prompted`).

    Raises:
        UserError: rows that plain decoding does not read as they are meant.
    """
    if model.config.is_encoder_decoder:
        return None
    cache = cache_in(model_kwargs)
    past = held_by(cache)
    if past is None:
        return None
    inputs = _first_inputs(model, input_ids, past, config, model_kwargs)
    in_inputs = held_by(cache_in(inputs))
    more = any(value is not None and name not in FED for name, value in inputs.items())
    if more or not input_ids.shape[1] or in_inputs is None or in_inputs > past:
        return None
    visible, ids = _visible(input_ids, past, config, model_kwargs.get("attention_mask"))
    if _has_gap(visible) or not _counts_up(visible, model_kwargs.get("position_ids")):
        return None
    texts = [row[own].tolist() for row, own in zip(ids, visible, strict=True)]
    cached = cached_rows(cache, visible[:, :past]) if past else [CachedRow()] * len(texts)
    return Prompt(texts, cached, cache, ids.shape[1] - input_ids.shape[1], not bool(visible.all()))


def _first_inputs(
    model: Any, input_ids: Tensor, past: int, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the inputs that plain decoding would pass to the model first."""
    kwargs = {name: value for name, value in model_kwargs.items() if name not in NAMES or past}
    embeds, new = kwargs.get(EMBEDS), None
    if embeds is not None:
        new = embeds.shape[1] - past
    elif past and _width(kwargs.get("attention_mask"), config, input_ids) == input_ids.shape[1]:
        new = input_ids.shape[1] - past
    if new is not None and new < 1:
        raise UserError(f"{CACHE}: it holds all {past} tokens of the prompt; give at least one more")
    fed = model.prepare_inputs_for_generation(
        input_ids, next_sequence_length=new, is_first_iteration=True, **kwargs
    )
    return dict(fed)


def _width(mask: Any, config: GenerationConfig, input_ids: Tensor) -> int:
    """Return the number of tokens in the mask; `generate` drops a mask of ones and stores its width."""
    return int(mask.shape[1] if mask is not None else getattr(config, "_mask_length", input_ids.shape[1]))


def _visible(input_ids: Tensor, past: int, config: GenerationConfig, mask: Any) -> tuple[Tensor, Tensor]:
    """Return which tokens are visible (boolean), and all their ids, shape (rows, tokens) each."""
    width, length = _width(mask, config, input_ids), input_ids.shape[1]
    ids = input_ids
    if width == past + length and past:  # the tokens in the cache were not passed again
        ids = torch.cat([input_ids.new_zeros(len(input_ids), past), input_ids], dim=1)
    elif width != length:
        raise UserError(f"attention_mask: it speaks of {width} tokens where there are {past} + {length}")
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool), ids
    visible = (mask != 0).to(ids.device)
    if not bool(visible[:, -1].all()):
        raise UserError("attention_mask: a row is padded on the right; set padding_side='left'")
    return visible, ids


def _has_gap(visible: Tensor) -> bool:
    """Return whether a row has padding after its first token.

    Its tokens could not be moved together: windows and chunks count the padding, and states read it.
    """
    return bool((visible[:, 1:] < visible[:, :-1]).any())


def _counts_up(visible: Tensor, positions: Any) -> bool:
    """Return whether rows are read at positions 0, 1, 2, ... from their first token on."""
    if positions is None:
        return True
    own, here = (x[:, -positions.shape[-1] :] for x in (visible.long().cumsum(-1) - 1, visible))
    return positions.dim() == 2 and bool((positions.to(own.device).expand_as(own) == own)[here].all())


def cached_rows(cache: Any, visible: Tensor) -> list[CachedRow]:
    """Return the contents of `cache` for each row where `visible`, boolean, shape (rows, slots).

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
    rows = [CachedRow(int(own.sum())) for own in visible]
    for layer in cache.layers:
        keys, values = (_all_slots(x, total)[..., : visible.shape[1], :] for x in (layer.keys, layer.values))
        for row, (cached, own) in enumerate(zip(rows, visible.to(keys.device), strict=True)):
            cached.layers.append((keys[row][:, own], values[row][:, own]))
    return rows


def _all_slots(stored: Tensor, total: int) -> Tensor:
    """Return all slots of a layer; dropped slots of a sliding window are filled, and never attended to."""
    stored = stored[..., :total, :]
    missing = total - stored.shape[-2]
    return torch.cat([stored.new_zeros(*stored.shape[:-2], missing, stored.shape[-1]), stored], dim=-2)


def fill(model: Any, prompt: Prompt, sequences: Tensor, model_kwargs: Mapping[str, Any]) -> None:
    """Write the new tokens into the prompt's cache, as plain decoding leaves it.

    It then holds all tokens but the last of every row, padding included. `sequences` are all ids, shape
    (rows, length).
    """
    total = prompt.virtual + sequences.shape[1] - 1
    new = total - (held_by(prompt.cache) or 0)
    kwargs = dict(model_kwargs)
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if mask is not None:
        kwargs["attention_mask"] = torch.cat([mask, mask.new_ones(len(mask), total - mask.shape[1])], dim=1)
    if positions is not None:
        more = torch.arange(1, total + 1 - len(positions[0]), device=positions.device)
        kwargs["position_ids"] = torch.cat([positions, positions[:, -1:] + more], dim=1)
    fed = model.prepare_inputs_for_generation(
        sequences[:, :-1], next_sequence_length=new, is_first_iteration=False, **kwargs
    )
    model(**fed, return_dict=True)


class HostTarget(HFTarget):
    """The model that `generate` was called on.

    Rows that advance independently have their processors in `shapes`, by request; others are `together`.
    `usual` is the default prefill chunk.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.usual = self.chunk
        self.shapes: dict[int, Chain] = {}
        self.together: Together | None = None

    @cached_property
    def neutral(self) -> bool:
        """True if padding before a row changes nothing in it."""
        return is_neutral(self.runner.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.runner.device

    def padding(self, steps: Steps, limit: int, prompt: Prompt) -> Padding:
        """The logits of finished rows, read in passes of their own."""

        def read(row: int, tokens: Sequence[int], n: int) -> Tensor:
            cached, text = prompt.cached[row], [*prompt.texts[row], *tokens]
            ids = torch.tensor([text[cached.length :]], device=self.device)
            cache = cached.cache()
            inputs = {self.runner.cache_name: cache, "use_cache": cache is not None}
            logits: Tensor = self.runner.model(input_ids=ids, **inputs).logits
            return logits[0, -n:]

        # A token beyond the model's positions would fail, although the text may end before it.
        limits = [min(limit, self.max_length + 1 - len(text)) for text in prompt.texts]
        return Padding(steps, limits, read)

    def launch(self, batch: Sequence[tuple[Request, Draft]]) -> Callable[[], list[Scores]]:
        """Start a pass over each request's last token and its draft."""
        if self.together is None:
            return super().launch(batch)
        self.together.prepare(batch)
        with self.together.guard():
            return super().launch(batch)

    def close(self, request: Request) -> None:
        """Free the request's row."""
        super().close(request)
        self.shapes.pop(request.id, None)

    def _scores(
        self, batch: Sequence[tuple[Request, Draft]], rows: list[int], widths: list[int], logits: Tensor
    ) -> Callable[[], list[Scores]]:
        read, together = super()._scores(batch, rows, widths, logits), self.together
        if together is None:
            return read

        def read_together() -> list[Scores]:
            with together.guard():
                scores: list[Any] = read()
                return together.scores(batch, [one.logits for one in scores])

        return read_together

    def _plain(self, request: Request) -> bool:
        if self.together is not None:
            return True
        shape = self._chain(request)
        return request.sampling.greedy and not shape.historic and not shape.warpers

    def _chain(self, request: Request) -> Chain:
        return self.shapes[request.id]

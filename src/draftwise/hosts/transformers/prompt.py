"""The rows passed to `generate`: each row's own tokens, and their keys and values in a given cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ...errors import UserError
from ...models.cache_names import CACHE, NAMES, cache_in
from ...models.recurrent import held_by
from .caches import Held, held_rows

# Model inputs other than the tokens that are supported here.
FED = {"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep", *NAMES}
EMBEDS = "inputs_embeds"


@dataclass(slots=True)
class Prompt:
    """The rows before their first new token.

    `texts` are each row's tokens without padding; tokens that only a cache holds are 0 there. `held` has the
    keys and values of the first of them, `virtual` the number of slots in `cache` without a token in
    `input_ids`. Some are `padded`.
    """

    texts: list[list[int]]
    held: list[Held]
    cache: Any = None
    virtual: int = 0
    padded: bool = False


def read_prompt(
    model: Any, input_ids: Tensor, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> Prompt | None:
    """The rows as plain decoding would read them, derived from the inputs it would pass to the model.

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
    fed = _fed(model, input_ids, past, config, model_kwargs)
    given = held_by(cache_in(fed))
    more = any(value is not None and name not in FED for name, value in fed.items())
    if more or not input_ids.shape[1] or given is None or given > past:
        return None
    seen, ids = _seen(input_ids, past, config, model_kwargs.get("attention_mask"))
    if _gapped(seen) or not _counted(seen, model_kwargs.get("position_ids")):
        return None
    texts = [row[own].tolist() for row, own in zip(ids, seen, strict=True)]
    held = held_rows(cache, seen[:, :past]) if past else [Held()] * len(texts)
    return Prompt(texts, held, cache, ids.shape[1] - input_ids.shape[1], not bool(seen.all()))


def _fed(
    model: Any, input_ids: Tensor, past: int, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs that plain decoding would pass to the model first."""
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
    """The number of tokens in the mask; `generate` drops a mask of ones and stores its width."""
    return int(mask.shape[1] if mask is not None else getattr(config, "_mask_length", input_ids.shape[1]))


def _seen(input_ids: Tensor, past: int, config: GenerationConfig, mask: Any) -> tuple[Tensor, Tensor]:
    """Which tokens are visible (boolean), and all their ids, shape (rows, tokens) each."""
    width, length = _width(mask, config, input_ids), input_ids.shape[1]
    ids = input_ids
    if width == past + length and past:  # the tokens in the cache were not passed again
        ids = torch.cat([input_ids.new_zeros(len(input_ids), past), input_ids], dim=1)
    elif width != length:
        raise UserError(f"attention_mask: it speaks of {width} tokens where there are {past} + {length}")
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool), ids
    seen = (mask != 0).to(ids.device)
    if not bool(seen[:, -1].all()):
        raise UserError("attention_mask: a row is padded on the right; set padding_side='left'")
    return seen, ids


def _gapped(seen: Tensor) -> bool:
    """Whether a row has padding after its first token.

    Its tokens could not be moved together: windows and chunks count the padding, and states read it.
    """
    return bool((seen[:, 1:] < seen[:, :-1]).any())


def _counted(seen: Tensor, positions: Any) -> bool:
    """Whether rows are read at positions 0, 1, 2, ... from their first token on."""
    if positions is None:
        return True
    own, here = (x[:, -positions.shape[-1] :] for x in (seen.long().cumsum(-1) - 1, seen))
    return positions.dim() == 2 and bool((positions.to(own.device).expand_as(own) == own)[here].all())


def fill(model: Any, prompt: Prompt, sequences: Tensor, model_kwargs: Mapping[str, Any]) -> None:
    """Write the new tokens into the prompt's cache, as plain decoding leaves it.

    It then holds all tokens but the last of every row, padding included. `sequences` are all ids, shape
    (rows, length).
    """
    new = prompt.virtual + sequences.shape[1] - 1 - (held_by(prompt.cache) or 0)
    if new < 1:
        return
    kwargs = dict(model_kwargs)
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

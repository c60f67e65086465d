"""The rows passed to `generate`: each row's own tokens, and their keys and values in a given cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig

from ...errors import UserError
from ...models.recurrent import tensors
from .caches import Held, held_rows

# Model inputs other than the tokens that are supported here.
FED = {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
EMBEDS = "inputs_embeds"


@dataclass(slots=True)
class Prompt:
    """The rows before their first new token.

    `texts` are each row's tokens without padding; tokens that only a cache holds are 0 there. `held` has the
    keys and values of the first of them, `virtual` the number of slots in `cache` without a token in
    `input_ids`.
    """

    texts: list[list[int]]
    held: list[Held]
    cache: Any = None
    virtual: int = 0
    soft: bool = False


def read_prompt(
    model: Any, input_ids: Tensor, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> Prompt:
    """The rows as plain decoding would read them, derived from the inputs it would pass to the model.

    Raises:
        UserError: unsupported model inputs.
    """
    cache = model_kwargs.get("past_key_values")
    past = int(cache.get_seq_length()) if cache is not None else 0
    fed = _fed(model, input_ids, past, config, model_kwargs)
    for name, value in fed.items():
        if value is not None and name not in FED | {EMBEDS} and not _empty(value):
            raise UserError(f"{name}: draftwise cannot hand this to the model; leave it out")
    given = fed.get("past_key_values")
    if fed.get(EMBEDS) is not None or (given is not None and int(given.get_seq_length()) > past):
        return _soft(model, input_ids, fed, cache)
    seen, ids = _seen(input_ids, past, config, model_kwargs.get("attention_mask"))
    _check_positions(seen, model_kwargs.get("position_ids"))
    texts = [row[own].tolist() for row, own in zip(ids, seen, strict=True)]
    held = held_rows(cache, seen[:, :past]) if past else [Held()] * len(texts)
    return Prompt(texts, held, cache, ids.shape[1] - input_ids.shape[1])


def _empty(value: Any) -> bool:
    """Whether this is a new cache, as `generate` makes for a model that takes it under another name."""
    return isinstance(value, Cache) and next(tensors(value), None) is None


def _fed(
    model: Any, input_ids: Tensor, past: int, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs that plain decoding would pass to the model first."""
    kwargs = {name: value for name, value in model_kwargs.items() if name != "past_key_values" or past}
    embeds, new = kwargs.get(EMBEDS), None
    if embeds is not None:
        new = embeds.shape[1] - past
    elif past and _width(kwargs.get("attention_mask"), config, input_ids) == input_ids.shape[1]:
        new = input_ids.shape[1] - past
    if new is not None and new < 1:
        raise UserError(f"past_key_values: it holds all {past} tokens of the prompt; give at least one more")
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


def _check_positions(seen: Tensor, positions: Any) -> None:
    """Rows are read at positions 0, 1, 2, ... from their first token on; other positions are rejected."""
    if positions is None:
        return
    own, here = (x[:, -positions.shape[-1] :] for x in (seen.long().cumsum(-1) - 1, seen))
    if positions.dim() != 2 or not bool((positions.to(own.device).expand_as(own) == own)[here].all()):
        raise UserError("position_ids: draftwise counts each row from its first token on; leave them out")


def _soft(model: Any, input_ids: Tensor, fed: dict[str, Any], cache: Any) -> Prompt:
    """A prompt with parts that are not tokens, such as a tuned prefix.

    The model reads the inputs as they are, and the rows take over the resulting cache, all but the last
    token.

    Raises:
        UserError: rows of different lengths, positions other than 0, 1, 2, ..., or an end that is not a
            token.
    """
    embeds, mask, length = fed.get(EMBEDS), fed.get("attention_mask"), input_ids.shape[1]
    name = EMBEDS if embeds is not None else "past_key_values"
    if mask is not None and (mask.dim() != 2 or not bool((mask != 0).all())):
        raise UserError(f"{name}: a soft prompt beside padding is not available; give prompts of one length")
    if embeds is not None:
        ends = model.get_input_embeddings()(input_ids[:, -1:].to(model.device)) if length else None
        if ends is None or not torch.equal(ends.to(embeds.dtype), embeds[:, -1:]):
            raise UserError("inputs_embeds: its last place must be a token; pass input_ids with it")
    if fed.get("past_key_values") is None and cache is not None:
        fed["past_key_values"] = cache
    read = model(**fed | {"use_cache": True}, return_dict=True).past_key_values
    total = int(read.get_seq_length())
    virtual, positions = total - length, fed.get("position_ids")
    if positions is not None:
        own = torch.arange(total, device=positions.device)[-positions.shape[-1] :]
        if positions.dim() != 2 or not bool((positions == own).all()):
            raise UserError(f"{name}: its position_ids are not 0, 1, 2, ...; leave them out")
    seen = torch.ones((len(input_ids), total), dtype=torch.bool, device=input_ids.device)
    seen[:, -1] = False
    texts = [[*(0,) * virtual, *row] for row in input_ids.tolist()]
    return Prompt(texts, held_rows(read, seen), read, virtual, soft=True)


def fill(model: Any, prompt: Prompt, sequences: Tensor, model_kwargs: Mapping[str, Any]) -> None:
    """Write the new tokens into the prompt's cache, as plain decoding leaves it.

    It then holds all tokens but the last of every row, padding included. `sequences` are all ids, shape
    (rows, length).
    """
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

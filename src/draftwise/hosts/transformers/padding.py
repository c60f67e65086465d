"""A test that padding before a row changes nothing in it, so that the row can be read without."""

from __future__ import annotations

from logging import getLogger
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ...models.probe.checks import device_of
from ...models.probe.readings import LONGEST, NEW, PROMPT, Readings, having, made_up
from ...models.probe.small import miniature
from ...models.runner.recurrent import in_modules, kinds, put
from ...models.stages import quiet

LOG = getLogger(__name__)


def neutral(model: Any) -> bool:
    """Return whether `generate` decodes made-up tokens with padding before them from the logits without it.

    Where a class counts positions by slots, its states read padding, or its index counts it in blocks, they
    differ. A small model of the class has to agree, since blocks may be longer than a short text.
    """
    return _neutral(model) and ((small := miniature(model)) is None or _neutral(small))


def padding(n: int) -> int:
    """Padding before a prompt of `n` tokens: so much that the blocks where a token would be without it hold
    padding alone, and odd, so that groups of tokens become others."""
    return 2 * n + 3


def _neutral(model: Any) -> bool:
    try:
        readings = Readings(model)
        error = readings.error(_padded(model, readings.tokens[: readings.n]), range(NEW))
    except torch.OutOfMemoryError:
        raise
    except Exception as trouble:  # a class without padding may raise anything
        LOG.info("%s does not read padding: %s", type(model).__name__, trouble)
        return False
    return error <= readings.tolerance


def padded(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Longer rows, of which the first is only as long as it was and has padding before it; their mask."""
    n = ids.shape[1]
    ids = ids.repeat(1, 4)[:, -n - padding(n) :]
    mask = torch.ones_like(ids)
    mask[0, : padding(n)] = 0
    return ids, mask


def dense(model: Any, rows: int) -> Tensor:
    """Made-up rows without padding, longer than a short window, shape (rows, tokens)."""
    text = model.config.get_text_config(decoder=True)
    limits = [getattr(text, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
    n = PROMPT + max(limit for limit in (0, *limits) if limit <= LONGEST)
    tokens = made_up(rows * n, model.config)
    return torch.tensor(tokens, device=device_of(model)).view(rows, n)


@torch.inference_mode()
def _padded(model: Any, prompt: list[int]) -> Tensor:
    """The logits that `generate` decodes from after padding and a prompt, shape (NEW, vocabulary)."""
    pads = padding(len(prompt))
    ids = torch.tensor([[*prompt[:1] * pads, *prompt]], device=device_of(model))
    mask = torch.ones_like(ids)
    mask[:, :pads] = 0
    settings: Any = GenerationConfig
    returned = {"output_logits": True, "return_dict_in_generate": True}
    config = settings(max_new_tokens=NEW, do_sample=False, **returned)
    _forget(model)
    with quiet(), having(model, settings()):
        out = type(model).generate(model, ids, attention_mask=mask, generation_config=config)
    _forget(model)
    return torch.cat(list(out.logits))


def _forget(model: Any) -> None:
    """Drop states that modules keep from one text to the next."""
    if kinds(model.config.get_text_config(decoder=True)):
        put(in_modules(model), None)

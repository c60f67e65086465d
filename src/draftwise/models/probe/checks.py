"""Rejects models that declare that their text could not be kept exact, with the reason and the remedy."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import UserError

MASKED = ("sdpa", "eager")  # attention implementations that accept a separate mask for every row


def name(model: Any) -> str:
    """The model's name and its class."""
    kind = type(model).__name__
    called = str(getattr(model, "name_or_path", "") or kind)
    return called if called == kind else f"{called} ({kind})"


def device_of(model: Any) -> torch.device:
    """Where a model takes its tokens; some classes do not say which of their tables are the input's."""
    try:
        found: torch.device = model.get_input_embeddings().weight.device
    except (AttributeError, NotImplementedError):
        found = model.device
    return found


def check(model: Any) -> None:
    """Raise a UserError unless the model declares itself a causal LM."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(f"{name(model)} is an encoder-decoder model: give a decoder-only causal LM")
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
        raise UserError(f"{name(model)} has no language-model head: load it with AutoModelForCausalLM")
    check_attention(model)


def check_attention(model: Any) -> None:
    """Raise a UserError unless its attention accepts a separate mask for every row."""
    text = model.config.get_text_config(decoder=True)
    attention = getattr(text, "_attn_implementation", None) or "eager"
    if attention not in MASKED:
        raise UserError(
            f"{name(model)} runs {attention} attention, which takes no mask per row: "
            "load it with attn_implementation='sdpa' or 'eager'"
        )

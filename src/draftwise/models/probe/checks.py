"""Rejects models that declare that their text could not be kept exact, with the reason and the remedy."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ...errors import DraftwiseWarning, UserError
from .readings import HALF

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


def check_steady(model: Any, noise: float) -> None:
    """Name a model whose logits move by `noise` with the width of a pass, if that is not 0: warn in half
    precision, else reject it.

    Raises:
        UserError: it computes in float32, where texts are promised to be the model's own.
    """
    moves = f"{name(model)} is quantised so that its logits move by about {noise:.1g} with a pass's width"
    if noise and model.dtype in HALF:
        warnings.warn(
            f"{moves}, more than rounding explains: text with drafts may part from the model's own",
            DraftwiseWarning,
            stacklevel=5,
        )
    elif noise:
        raise UserError(
            f"{moves}, and text with drafts would not be its own: quantise its weights alone, let it draft, "
            "or set DRAFTWISE_PROBE=0"
        )

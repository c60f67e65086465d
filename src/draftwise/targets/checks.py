"""Refuses, by name and with what to do, models whose text could not be kept exact."""

from __future__ import annotations

import inspect
from typing import Any

from ..errors import UserError

MASKED = ("sdpa", "eager")  # attention implementations that take a mask of their own for every row
RECURRENT = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "ssm", "hybrid", "chunked_attention")


def check(model: Any) -> None:
    """Raise a UserError unless the model is a causal LM whose cache can rewind."""
    name, kind, config = _name(model), type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{name} ({kind}) is an encoder-decoder model: give a decoder-only causal LM")
    if (
        getattr(config, "vision_config", None) is not None
        or getattr(config, "audio_config", None) is not None
    ):
        raise UserError(f"{name} ({kind}) reads pictures or sound: give its text-only causal LM")
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
        raise UserError(f"{name} ({kind}) has no language-model head: load it with AutoModelForCausalLM")
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ()) | set(
        getattr(text, "layers_block_type", None) or ()
    )
    stateful = bool(getattr(type(model), "_is_stateful", False))
    if stateful or any(word in k for k in kinds for word in RECURRENT):
        what = (
            ", ".join(sorted(k for k in kinds if k not in ("full_attention", "sliding_attention")))
            or "recurrent state"
        )
        raise UserError(
            f"{name} ({kind}) keeps a state that cannot rewind ({what}): use it as it is, "
            "or choose a model with full or sliding-window attention only"
        )
    if getattr(text, "alibi", False) or text.model_type == "bloom":
        raise UserError(
            f"{name} ({kind}) makes its ALiBi biases from a plain padding mask, which does not fit rows of "
            "different lengths: choose a model with rotary or learned positions"
        )
    _check_attention(model)


def check_trees(model: Any) -> None:
    """Raise a UserError unless the model can be told where each token of a tree stands, and what it sees."""
    _check_attention(model)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UserError(
            f"{_name(model)} ({type(model).__name__}) counts positions for itself, so it cannot read a tree "
            "of drafted tokens: use a policy that drafts chains"
        )


def _check_attention(model: Any) -> None:
    text = model.config.get_text_config(decoder=True)
    attention = getattr(text, "_attn_implementation", None) or "eager"
    if attention not in MASKED:
        raise UserError(
            f"{_name(model)} ({type(model).__name__}) runs {attention} attention, which takes no mask per "
            "row: load it with attn_implementation='sdpa' or 'eager'"
        )


def _name(model: Any) -> str:
    return str(getattr(model, "name_or_path", "") or type(model).__name__)

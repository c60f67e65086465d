"""New EAGLE heads for a target: the shape of its layers, with newly initialised weights."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn
from transformers import LlamaConfig

from .eagle import Eagle
from .eagle3 import Eagle3

Head = TypeVar("Head", bound=nn.Module)


def eagle_config(target: Any, *, eagle3: bool = False, drafted: int = 0, **changes: Any) -> LlamaConfig:
    """The configuration of a new head for a target: the target's width, one layer of its shape.

    For EAGLE-3 `drafted` is the size of the drafted vocabulary, 0 for the target's whole vocabulary. The
    layers read are those of the paper's code: 2, the middle one, and the third from the last.
    """
    text = target.config.get_text_config(decoder=True)
    heads, width = int(text.num_attention_heads), int(text.hidden_size)
    shape: dict[str, Any] = {
        "vocab_size": int(text.vocab_size),
        "hidden_size": width,
        "intermediate_size": int(getattr(text, "intermediate_size", None) or 4 * width),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-6),
        "tie_word_embeddings": False,
    }
    if eagle3:
        shape |= {"draft_vocab_size": drafted or shape["vocab_size"]}
        shape |= {"eagle_aux_hidden_state_layer_ids": low_middle_high(target)}
    return LlamaConfig(**(shape | changes))


def low_middle_high(target: Any) -> list[int]:
    """The layers that EAGLE-3's code reads by default: 2, the middle one and the third from the last."""
    n = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    return [min(2, n - 1), n // 2, max(n - 3, 0)]


def new_eagle(target: Any, *, eagle3: bool = False, drafted: int = 0, **changes: Any) -> Eagle:
    """A head with newly initialised weights, on the target's device and in its dtype."""
    config = eagle_config(target, eagle3=eagle3, drafted=drafted, **changes)
    made = Eagle3(config, target, own=("lm_head",)) if eagle3 else Eagle(config, target)
    return beside(made, target)


def beside(head: Head, target: Any) -> Head:
    """The head on the target's device and in its dtype."""
    weight = target.get_input_embeddings().weight
    return head.to(weight.device, weight.dtype)

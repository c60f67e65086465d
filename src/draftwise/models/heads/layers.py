"""The decoder layers that heads consist of: those of the installed Transformers, by kind."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from ...errors import UserError

KINDS = ("llama", "mistral", "qwen2", "qwen3")
"""Kinds of models whose decoder layers are Llama's but for norms, biases and windows within attention. The
first layer of a head is used part by part (`through`), which would leave out what other layers add."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes of a model: its decoder layer, its norm and its rotary embedding."""

    layer: Any
    norm: Any
    rotary: Any


def parts_of(config: Any) -> Parts:
    """The classes of Transformers' model of this configuration, found by building it without weights.

    Raises:
        UserError: its layers are not made like Llama's.
    """
    if config.model_type not in KINDS:
        raise UserError(
            f"a head with layers of the kind {config.model_type!r} is not supported: use one whose layers "
            f"are of the kind {', '.join(KINDS)}"
        )
    build: Any = AutoModel.from_config  # without a declared type
    with torch.device("meta"):
        body = build(deepcopy(config))
    return Parts(type(body.layers[0]), type(body.norm), type(body.rotary_emb))


def fused(parts: Parts, config: Any) -> Any:
    """EAGLE-3's first decoder layer, whose attention reads the token and the state concatenated.

    It has a norm for the states in addition (`hidden_norm`); see `through`.
    """
    layer = parts.layer(config, 0)
    layer.hidden_norm = parts.norm(config.hidden_size, eps=config.rms_norm_eps)
    for name in ("q_proj", "k_proj", "v_proj"):
        old = getattr(layer.self_attn, name)
        wide = nn.Linear(2 * config.hidden_size, old.out_features, bias=old.bias is not None)
        setattr(layer.self_attn, name, wide)
    return layer


def through(layer: Any, words: Tensor, states: Tensor, *, norms_residual: bool, **how: Any) -> Tensor:
    """States after a `fused` layer, shape (rows, length, width), like both inputs."""
    normed = layer.hidden_norm(states)
    residual = normed if norms_residual else states
    both = torch.cat((layer.input_layernorm(words), normed), dim=-1)
    states = residual + layer.self_attn(hidden_states=both, **how)[0]
    after: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
    return after

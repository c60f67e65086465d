"""Models of a published shape with random weights: a pass takes as long as one of the real model.

The weights are made from a seed each time, so nothing is downloaded and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from draftwise.models.load import load_model

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SEED = 20250101
BLOCK = 1 << 22  # random numbers that are made; larger weights repeat them, which changes no pass's time
SCALE = 0.035  # half the width of their range: a standard deviation of 0.02, as in most initialisations


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A configuration; a `zoo` model is loaded instead."""

    kind: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    zoo: str = ""


def _sizes(
    hidden: int, layers: int, heads: int, kv: int, head: int, inner: int, vocab: int
) -> dict[str, int]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    sizes = (hidden, layers, heads, kv, head, inner, vocab)
    return dict(zip((*names, "intermediate_size", "vocab_size"), sizes, strict=True))


SHAPES = {
    "bundled": Shape(zoo="zoo:target"),
    "qwen3-0.6b": Shape(kind="qwen3", sizes=_sizes(1024, 28, 16, 8, 128, 3072, 151936)),
}


def model(shape: Shape, dtype: torch.dtype) -> Any:
    """Return the model of a shape, in evaluation mode on the CPU."""
    if shape.zoo:
        return load_model(shape.zoo, dtype=dtype, device="cpu")
    return made(shape.kind, shape.sizes, dtype)


def made(kind: str, sizes: Mapping[str, int], dtype: torch.dtype) -> Any:
    """A causal LM of Transformers with random weights and tied embeddings."""
    from transformers import AutoConfig, AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config  # it has no declared types
    config: Any = AutoConfig.for_model(
        kind, **sizes, tie_word_embeddings=True, max_position_embeddings=4096, rms_norm_eps=1e-6
    )
    with torch.device("meta"):  # no memory and no time for an initialisation that is overwritten
        built: Any = make(config, dtype=dtype)
    built.to_empty(device="cpu")
    built.model.rotary_emb = type(built.model.rotary_emb)(config)  # its buffers are no parameters
    built.tie_weights()
    fill(built)
    return built.eval().requires_grad_(False)


@torch.no_grad()
def fill(built: Any) -> None:
    """Random matrices, and norms of 1."""
    block = torch.empty(BLOCK).uniform_(-SCALE, SCALE, generator=torch.Generator().manual_seed(SEED))
    for parameter in built.parameters():
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        flat = parameter.view(-1)
        for start in range(0, len(flat), BLOCK):
            piece = flat[start : start + BLOCK]
            piece.copy_(block[: len(piece)])

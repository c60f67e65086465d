"""Models of a published shape with random weights: a pass takes as long as one of the real model.

The weights are made from a seed each time, so nothing is downloaded and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from draftwise.models.load import load_model

SEED = 20250101
BLOCK = 1 << 22  # random numbers that are made; larger weights repeat them, which changes no pass's time
SCALE = 0.035  # half the width of their range: a standard deviation of 0.02, as in most initialisations


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A target's configuration and that of a drafter for it; `zoo` models are loaded instead.

    Where there is no published drafter of the vocabulary, the drafter has a quarter of the target's width and
    two of its layers: 6 to 7 % of its weights, as the bundled drafter has 5 % of the bundled target's.
    """

    kind: str = ""
    target: Mapping[str, int] = field(default_factory=dict)
    drafter: Mapping[str, int] = field(default_factory=dict)
    zoo: tuple[str, str] | None = None


def _sizes(
    hidden: int, layers: int, heads: int, kv: int, head: int, inner: int, vocab: int
) -> dict[str, int]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    sizes = (hidden, layers, heads, kv, head, inner, vocab)
    return dict(zip((*names, "intermediate_size", "vocab_size"), sizes, strict=True))


SHAPES = {
    "bundled": Shape(zoo=("zoo:target", "zoo:general")),
    "qwen3-0.6b": Shape(
        kind="qwen3",
        target=_sizes(1024, 28, 16, 8, 128, 3072, 151936),
        drafter=_sizes(256, 2, 4, 2, 64, 768, 151936),
    ),
    "llama-3.2-1b": Shape(
        kind="llama",
        target=_sizes(2048, 16, 32, 8, 64, 8192, 128256),
        drafter=_sizes(512, 2, 8, 2, 64, 2048, 128256),
    ),
    # For tests: a pass takes a millisecond.
    "tiny": Shape(
        kind="llama", target=_sizes(64, 2, 4, 2, 16, 128, 512), drafter=_sizes(32, 1, 2, 1, 16, 64, 512)
    ),
}


def model(shape: Shape, dtype: torch.dtype, *, drafter: bool = False) -> Any:
    """The target of a shape, or its drafter, in evaluation mode on the CPU."""
    if shape.zoo is not None:
        return load_model(shape.zoo[drafter], dtype=dtype, device="cpu")
    return made(shape.kind, shape.drafter if drafter else shape.target, dtype)


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


def weights(built: Any) -> tuple[int, int]:
    """The number of weights and their bytes; a tied embedding counts once, since a pass reads it once."""
    parameters = list(built.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() * p.element_size() for p in parameters)

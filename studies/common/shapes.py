"""Models of published shapes with random weights: a pass takes as long as one of the real model.

The weights follow from a seed, so nothing is downloaded and nothing is stored.
"""

from __future__ import annotations

from typing import Any

import torch

SEED = 20250101
BLOCK = 1 << 22  # random numbers that are made; larger weights repeat them, which changes no pass's time
SCALE = 0.035  # half the width of their range: a standard deviation of 0.02, as in most initialisations
SHAPES = {  # kind, hidden and feed-forward size, layers, heads, those of keys, their size, vocabulary, tied
    "Qwen3-0.6B": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "Llama-3.2-1B": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "Qwen3-8B": ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False),
    "tiny": ("qwen3", 64, 128, 2, 4, 2, 16, 1024, True),
}
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings"),
)


def model_of_shape(name: str, dtype: torch.dtype, device: str = "cpu") -> Any:
    """A causal LM of Transformers in evaluation mode: random matrices, and norms of 1."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, *sizes = SHAPES[name]
    more = {"max_position_embeddings": 8192, "rms_norm_eps": 1e-6}
    config: Any = AutoConfig.for_model(kind, **dict(zip(SIZES, sizes, strict=True)), **more)
    make: Any = AutoModelForCausalLM.from_config  # it has no declared types
    with torch.device("meta"):  # no memory and no time for an initialisation that is overwritten
        model: Any = make(config, dtype=dtype)
    model.to_empty(device=device)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)  # its buffers are no parameters
    model.tie_weights()
    _fill(model)
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)


@torch.no_grad()
def _fill(model: Any) -> None:
    block = torch.empty(BLOCK).uniform_(-SCALE, SCALE, generator=torch.Generator().manual_seed(SEED))
    for parameter in model.parameters():
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        flat = parameter.view(-1)
        for begin in range(0, len(flat), BLOCK):
            piece = flat[begin : begin + BLOCK]
            piece.copy_(block[: len(piece)])

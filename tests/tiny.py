"""Small random models of the architectures that are tested, in float64 so that nothing ties by rounding."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

VOCAB = 23
COMMON: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**COMMON),
    "qwen3": lambda: Qwen3Config(**COMMON),
    "qwen3-window": lambda: Qwen3Config(
        **COMMON, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**COMMON, sliding_window=9),
    "gemma": lambda: GemmaConfig(**COMMON),
    "gemma2-window": lambda: Gemma2Config(**COMMON, sliding_window=9),
    "gemma3-window": lambda: Gemma3TextConfig(**COMMON, sliding_window=9),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=128,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    ),
    "gpt-neox": lambda: GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    ),
}


def model(
    name: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    attention: str = "sdpa",
    scale: float = 8.0,
) -> Any:
    """A random model; `scale` sharpens its logits so that its text is not flat."""
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(CONFIGS[name](), attn_implementation=attention)
    made.generation_config.eos_token_id = None
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return made.to(dtype).eval()


def own_text(made: Any, prompt: list[int], n: int) -> list[int]:
    """What Transformers' own greedy decoding writes."""
    ids = torch.tensor([prompt])
    out = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
    return list(out[0, len(prompt) :].tolist())

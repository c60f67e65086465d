"""Small random models of the architectures that are tested, in float64 so that nothing ties by rounding."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import cycle
from random import Random
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV32Config,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MiniMaxM3VLTextConfig,
    MistralConfig,
    Qwen3Config,
)

from draftwise.models.native.kernels import rounded

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
KERNELS = COMMON | {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
"""Sizes that our kernels can compute, of quantised weights too."""


# Sparse attention with an indexer. No two of its scores may tie: it has many heads, so that not all of them
# are cut off at zero, and no token is padding, whose embedding would be zero.
def deepseek_sparse() -> Any:
    sizes: dict[str, Any] = {"kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 8, "n_group": 1}
    sizes |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "topk_group": 1, "moe_intermediate_size": 16}
    sizes |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    sizes |= {"index_topk": 6, "index_head_dim": 8, "index_n_heads": 32}
    config = DeepseekV32Config(**COMMON | {"num_key_value_heads": 4, "pad_token_id": None} | sizes)
    config._experts_implementation = "eager"
    return config


def minimax_sparse() -> Any:
    sizes: dict[str, Any] = {"rotary_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    sizes |= {"dense_intermediate_size": 24, "shared_intermediate_size": 24, "index_head_dim": 8}
    sizes |= {"index_n_heads": 2, "index_block_size": 4, "index_topk_blocks": 2}
    sizes |= {"layer_types": ["minimax_m3_sparse"] * 2, "mlp_layer_types": ["dense", "sparse"]}
    config = MiniMaxM3VLTextConfig(**COMMON | {"pad_token_id": None} | sizes)
    config._experts_implementation = "eager"
    return config


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
    "deepseek-sparse": deepseek_sparse,
    "minimax-sparse": minimax_sparse,
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
    layers: int = 2,
) -> Any:
    """A random model; `scale` sharpens its logits so that its text is not flat."""
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    config = CONFIGS[name]()
    if layers != config.num_hidden_layers:
        config.num_hidden_layers = layers
    made = auto.from_config(config, attn_implementation=attention)
    made.generation_config.eos_token_id = None
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return made.to(dtype).eval()


WRITTEN: dict[tuple[bytes, tuple[int, ...], int], list[int]] = {}  # texts by model, prompt and length


def own_text(made: Any, prompt: list[int], n: int) -> list[int]:
    """What Transformers' own greedy decoding writes; models that are alike write it once."""
    key = (fingerprint(made), tuple(prompt), n)
    if not key[0] or key not in WRITTEN:
        ids = torch.tensor([prompt])
        out = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
        WRITTEN[key] = out[0, len(prompt) :].tolist()
    return list(WRITTEN[key])


def fingerprint(made: Any) -> bytes:
    """All that a small model's text depends on; nothing where another's code could take part in a pass."""
    for part in made.modules():
        own = type(part).__module__.startswith(("torch.nn.modules", "transformers.models"))
        if not own or part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
            return b""
    digest = sha256(f"{type(made)}{made.dtype}{made.config._attn_implementation}".encode())
    digest.update(f"{made.config.to_json_string()}{made.generation_config}".encode())
    for name, tensor in made.state_dict().items():
        digest.update(name.encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def lively(config: Any, seed: int = 0) -> Any:
    """A random model of a config, with sharp attention: its text changes with positions and masks."""
    torch.manual_seed(seed)
    config._experts_implementation = "eager"
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(config).double().eval()
    made.generation_config.eos_token_id = None
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 2.5 / parameter.shape[-1] ** 0.5)
    return made


def with_weights_of(model: Any, *formats: torch.dtype) -> Any:
    """The model with the nearest weights that formats of our kernels hold, a layer each in turn."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer, stored in zip(layers, cycle(formats), strict=False):
        layer.weight.data = rounded(layer.weight.data, stored)
    return model


def random_texts(lengths: Sequence[int]) -> list[list[int]]:
    """Token ids without the special ones, the same every time."""
    rng = Random(1)
    return [[rng.randrange(2, VOCAB) for _ in range(n)] for n in lengths]

"""Writes heads in the published layouts, with random numbers, for the tiny Llama of the tests: 16 wide, 4
heads of 8 numbers, 2 of keys and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.tiny import VOCAB

WIDTH, HEAD, DRAFTED = 16, 8, 9
LAYER = {
    "self_attn.q_proj": (32, WIDTH),
    "self_attn.k_proj": (16, WIDTH),
    "self_attn.v_proj": (16, WIDTH),
    "self_attn.o_proj": (WIDTH, 32),
    "mlp.gate_proj": (24, WIDTH),
    "mlp.up_proj": (24, WIDTH),
    "mlp.down_proj": (WIDTH, 24),
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
}
NORMS = {"self_attn.q_norm": (HEAD,), "self_attn.k_norm": (HEAD,)}  # of Qwen3's layers
SHAPE: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "head_dim": HEAD,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}


def random(shapes: dict[str, tuple[int, ...]], seed: int = 5, scale: float = 0.3) -> dict[str, Tensor]:
    """Random tensors; norms around 1."""
    made = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(shape, generator=made) * scale for name, shape in shapes.items()}
    return {name: t + 1.0 if t.dim() == 1 else t for name, t in found.items()}


def layer(prefix: str, kind: str, *, first: bool = False) -> dict[str, tuple[int, ...]]:
    """The tensors of one decoder layer; EAGLE-3's first reads token and state side by side."""
    shapes: dict[str, tuple[int, ...]] = dict(LAYER) | (NORMS if kind == "qwen3" else {})
    if first:
        shapes |= {
            f"self_attn.{name}_proj": (shapes[f"self_attn.{name}_proj"][0], 2 * WIDTH) for name in "qkv"
        }
        shapes["hidden_norm"] = (WIDTH,)
    return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def maps(ids: list[int], vocab: int = VOCAB) -> dict[str, Tensor]:
    """`d2t` and `t2d` for these drafted tokens."""
    chosen = torch.tensor(ids)
    inside = torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, True)
    return {"d2t": chosen - torch.arange(len(ids)), "t2d": inside}


IDS = [3, 4, 6, 8, 9, 13, 17, 20, 22]


def speculators(kind: str, layers: str, depth: int, **settings: Any) -> dict[str, Any]:
    """A config.json of the `speculators` library, for a head of a kind with layers of a kind."""
    method = {"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1}
    return {
        "architectures": [f"{kind.capitalize()}Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.6.0",
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [method],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "org/Tiny", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": SHAPE | {"model_type": layers, "num_hidden_layers": depth},
        "draft_vocab_size": DRAFTED,
        "dtype": "float32",
        "tie_word_embeddings": False,
    } | settings


def eagle3(
    folder: Path,
    *,
    kind: str = "eagle3",
    layers: str = "llama",
    depth: int = 1,
    drafted: list[int] | None = None,
    **more: Any,
) -> Path:
    """A head of EAGLE-3 or P-EAGLE as `speculators` saves it, its own embedding among the tensors."""
    ids = more.setdefault("eagle_aux_hidden_state_layer_ids", [0, 1, 1])
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (WIDTH, len(ids) * WIDTH), "norm.weight": (WIDTH,)}
    drafted = drafted or IDS
    more.setdefault("draft_vocab_size", len(drafted))
    shapes |= {"lm_head.weight": (len(drafted), WIDTH), "embed_tokens.weight": (VOCAB, WIDTH)}
    shapes |= layer("layers.0", layers, first=True)
    for k in range(1, depth):
        shapes |= layer(f"layers.{k}", layers)
    if more.get("norm_before_fc"):
        shapes["input_norm.weight"] = (len(ids) * WIDTH,)
    if more.get("fc_norm"):
        shapes |= {f"fc_norm.{k}.weight": (WIDTH,) for k in range(len(ids))}
    if kind == "peagle":
        shapes["mask_hidden"] = (1, 1, len(ids) * WIDTH)
        more.setdefault("mask_token_id", 2)
    return write(folder, speculators(kind, layers, depth, **more), random(shapes) | maps(drafted))


def dflash(folder: Path, *, authors: bool = False, depth: int = 2, **more: Any) -> Path:
    """A DFlash head: as `speculators` saves it, with a vocabulary of its own, or as its authors do."""
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (WIDTH, 2 * WIDTH)}
    shapes |= {"hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    for k in range(depth):
        shapes |= layer(f"layers.{k}", "qwen3")
    if authors:
        inner = {"mask_token_id": 2, "target_layer_ids": [0, 1]} | more
        config = SHAPE | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 4}
        config |= {"num_hidden_layers": depth, "num_target_layers": 2, "dflash_config": inner}
        return write(folder, config, random(shapes))
    more = {"aux_hidden_state_layer_ids": [0, 1], "mask_token_id": 2, "block_size": 4} | more
    shapes |= {"lm_head.weight": (DRAFTED, WIDTH), "embed_tokens.weight": (VOCAB, WIDTH)}
    return write(folder, speculators("dflash", "qwen3", depth, **more), random(shapes) | maps(IDS))


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """The two files of a head."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder

"""Writes small random models whose files hold a layer of multi-token prediction, as published ones do."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tests.tiny import COMMON, VOCAB

DEPTH = 2
MOE: dict[str, Any] = {"moe_intermediate_size": 12, "num_experts_per_tok": 2, "num_hidden_layers": DEPTH + 1}
LATENT: dict[str, Any] = {"kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 8, "qk_rope_head_dim": 8}
GROUPS: dict[str, Any] = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LINEAR: dict[str, Any] = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}


def deepseek() -> Any:
    sizes = MOE | LATENT | GROUPS | {"qk_nope_head_dim": 8, "n_shared_experts": 1}
    return DeepseekV3Config(**COMMON | {"num_key_value_heads": 4} | sizes)


def glm() -> Any:
    return Glm4MoeConfig(**COMMON | MOE | GROUPS | {"n_shared_experts": 1, "use_qk_norm": True})


def qwen3_next() -> Any:
    kinds = ["linear_attention", "full_attention", "full_attention"]
    sizes = MOE | LINEAR | {"num_experts": 4, "layer_types": kinds, "linear_value_head_dim": 8}
    return Qwen3NextConfig(**COMMON | sizes | {"shared_expert_intermediate_size": 12})


def qwen3_5() -> Any:
    kinds = ["linear_attention", "full_attention", "full_attention"]
    turned = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 0],
    }
    sizes = LINEAR | {"layer_types": kinds, "linear_value_head_dim": 8, "rope_parameters": turned}
    return Qwen3_5TextConfig(**COMMON | sizes | {"num_hidden_layers": DEPTH + 1})


def mimo() -> Any:  # MiMo's layers are Qwen2's
    return Qwen2Config(
        **{k: v for k, v in COMMON.items() if k != "head_dim"} | {"num_hidden_layers": DEPTH + 1}
    )


class Layout(NamedTuple):
    """How a family names its layer: the config, the prefix, and the names of embedding norm, state norm,
    projection and last norm; whether the projection reads the state first."""

    config: Any
    prefix: str
    block: str
    names: tuple[str, str, str, str]
    states_first: bool = False
    normed: bool = True


AFTER = f"model.layers.{DEPTH}."
DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
QWEN = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
LAYOUTS = {
    "deepseek-v3": Layout(deepseek, AFTER, AFTER, DEEPSEEK, normed=False),
    "glm-4.5": Layout(glm, AFTER, AFTER, DEEPSEEK, normed=False),
    "qwen3-next": Layout(qwen3_next, "mtp.", "mtp.layers.0.", QWEN),
    "qwen3.5": Layout(qwen3_5, "mtp.", "mtp.layers.0.", QWEN),
    "mimo": Layout(mimo, "model.mtp_layers.0.", "model.mtp_layers.0.", MIMO, states_first=True),
}


class Written(NamedTuple):
    """A folder, the model of one layer more that it was cut from, and the tensors of the added parts."""

    folder: Path
    larger: Any
    parts: list[Tensor]


@cache
def written(folder: Path, family: str, scale: float = 1.0) -> Written:
    """A model of `DEPTH` layers with a random layer of multi-token prediction in its files."""
    layout = LAYOUTS[family]
    torch.manual_seed(3)
    config = layout.config()
    config._experts_implementation = "eager"
    build: Any = AutoModelForCausalLM.from_config  # without a declared type
    larger = build(config).double().eval()
    with torch.no_grad():
        larger.get_output_embeddings().weight.normal_(0, scale)
    larger.save_pretrained(folder)
    made = {key: tensor for file in folder.glob("*.safetensors") for key, tensor in load_file(file).items()}
    whole = {key.replace(AFTER, layout.block): tensor for key, tensor in made.items()}
    parts = [1 + 0.2 * torch.randn(16), 1 + 0.2 * torch.randn(16), torch.randn(16, 32) / 4]
    parts = [part.double() for part in (*parts, 1 + 0.2 * torch.randn(16))]
    whole |= {f"{layout.prefix}{name}.weight": t for name, t in zip(layout.names, parts, strict=True)}
    if layout.names == DEEPSEEK:  # shared with the model, and published again
        whole |= {f"{AFTER}embed_tokens.weight": made["model.embed_tokens.weight"].clone()}
        whole |= {f"{AFTER}shared_head.head.weight": made["lm_head.weight"].clone()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": DEPTH}
    for key in ("layer_types", "mlp_layer_types"):
        if isinstance(raw.get(key), list):
            raw[key] = raw[key][:DEPTH]
    (folder / "config.json").write_text(json.dumps(raw))
    return Written(folder, larger, parts)


def loaded(folder: Path) -> Any:
    """The model as Transformers loads it: without the added layer."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.config._experts_implementation = "eager"
    assert len(model.get_decoder().layers) == DEPTH and model.config.vocab_size == VOCAB
    return model.eval()


def reference(w: Written, family: str, words: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3's equations 21 to 23, with the layer of the larger model: states to continue from, and
    states that the output layer reads, (tokens, width)."""
    layout, body = LAYOUTS[family], w.larger.get_decoder()
    a, b = normed(words, w, 0, family), normed(states, w, 1, family)
    x = (torch.cat((b, a) if layout.states_first else (a, b), -1) @ w.parts[2].T)[None]
    n, places = x.shape[1], torch.arange(x.shape[1])[None]
    mask = torch.full((n, n), -torch.inf, dtype=x.dtype).triu(1)[None, None]
    turn = body.rotary_emb(x, places)
    with torch.no_grad():
        after = body.layers[DEPTH](x, position_embeddings=turn, attention_mask=mask, position_ids=places)[0]
    last = normed(after, w, 3, family)
    return (last if layout.normed else after), last


def normed(x: Tensor, w: Written, part: int, family: str) -> Tensor:
    """RMS norm; Qwen3-Next's and Qwen3.5's weights are distances from 1."""
    weight = 1 + w.parts[part] if family.startswith("qwen3") else w.parts[part]
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + w.larger.config.rms_norm_eps) * weight

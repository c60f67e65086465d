"""Heads for `zoo:target` in the form that vLLM loads: the bundled EAGLE head, and one of random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwise.models.load import resolve


def write_eagle(folder: Path) -> Path:
    """Write `zoo:eagle` without the bias of its first layer, which vLLM's heads do not have."""
    source = Path(resolve("zoo:eagle"))
    weights = load_file(source / "model.safetensors")
    del weights["fc.bias"]
    config = json.loads((source / "config.json").read_text())
    return _write(folder, weights, config | {"architectures": ["LlamaForCausalLM"]})


def write_random_eagle3(folder: Path, *, seed: int = 0) -> Path:
    """Write an EAGLE-3 head of the target's shape with random weights: it is nearly always wrong."""
    config = json.loads((Path(resolve("zoo:eagle")) / "config.json").read_text())
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return 0.05 * torch.randn(shape, generator=generator)

    layer = {
        "self_attn.q_proj": random(width, 2 * width),
        "self_attn.k_proj": random(width, 2 * width),
        "self_attn.v_proj": random(width, 2 * width),
        "self_attn.o_proj": random(width, width),
        "mlp.gate_proj": random(inner, width),
        "mlp.up_proj": random(inner, width),
        "mlp.down_proj": random(width, inner),
        "hidden_norm": torch.ones(width),
        "input_layernorm": torch.ones(width),
        "post_attention_layernorm": torch.ones(width),
    }
    weights = {f"midlayer.{name}.weight": value for name, value in layer.items()}
    weights |= {"fc.weight": random(width, 3 * width), "norm.weight": torch.ones(width)}
    weights["lm_head.weight"] = random(size, width)
    return _write(folder, weights, config | {"architectures": ["LlamaForCausalLMEagle3"]})


def _write(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder

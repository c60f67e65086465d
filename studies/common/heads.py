"""Heads for `zoo:target` in the form that vLLM loads: the bundled EAGLE head, and one of random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwise.models.load import resolve

NORMS = ("token_layernorm", "hidden_layernorm", "final_layernorm")  # of MiMo's further layer


def write_eagle(folder: Path) -> Path:
    """Write `zoo:eagle` without the bias of its first layer, which vLLM's heads do not have."""
    source = Path(resolve("zoo:eagle"))
    weights = load_file(source / "model.safetensors")
    del weights["fc.bias"]
    config = json.loads((source / "config.json").read_text())
    return _write(folder, weights, config | {"architectures": ["LlamaForCausalLM"]})


def write_random_eagle3(folder: Path) -> Path:
    """Write an EAGLE-3 head of the target's shape with random weights: it is nearly always wrong."""
    config = json.loads((Path(resolve("zoo:eagle")) / "config.json").read_text())
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    random = _drawn()
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


def write_mimo(folder: Path) -> Path:
    """Write `zoo:target` in the form of a MiMo, whose layer of multi-token prediction has random weights."""
    source = Path(resolve("zoo:target"))
    weights = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    width = config["hidden_size"]
    for name in [name for name in weights if "self_attn" in name and "o_proj" not in name]:
        weights[name.replace(".weight", ".bias")] = torch.zeros(len(weights[name]), dtype=weights[name].dtype)
    random = _drawn(weights["model.norm.weight"].dtype)
    first, layer = "model.layers.0.", "model.mtp_layers.0."
    copied = {name.replace(first, layer): value for name, value in weights.items() if name.startswith(first)}
    weights |= {
        name: random(*value.shape) if value.dim() > 1 else value.clone() for name, value in copied.items()
    }
    weights |= {f"{layer}{name}.weight": torch.ones(width) for name in NORMS}
    weights[f"{layer}input_proj.weight"] = random(width, 2 * width)
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") and file.name != "config.json":
            shutil.copy(file, folder)
    more = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    return _write(folder, weights, config | more)


def _drawn(dtype: torch.dtype = torch.float32) -> Callable[..., Tensor]:
    """Make random weights of a shape."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: (0.05 * torch.randn(shape, generator=generator)).to(dtype)


def _write(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder

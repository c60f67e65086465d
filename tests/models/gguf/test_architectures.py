"""llama.cpp computes from a converted model what Transformers computes, whatever its architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from draftwise.errors import UserError
from draftwise.models.gguf.export import find_architecture, write_gguf
from tests.gguf import Plain
from tests.tiny import COMMON, VOCAB, random_texts

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

ROPE = {"rope_theta": 5000.0}
LINEAR = ROPE | {"rope_type": "linear", "factor": 4.0}
LLAMA3 = ROPE | {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
WIDE = {"hidden_size": 32}  # as wide as all heads

CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**COMMON),
    "llama, other base": LlamaConfig(**COMMON, rope_parameters=ROPE),
    "llama, tied": LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama, biases": LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama, linear": LlamaConfig(**COMMON, rope_parameters=LINEAR),
    "llama, llama3": LlamaConfig(**COMMON, rope_parameters=LLAMA3),
    "llama, yarn": LlamaConfig(**COMMON, rope_parameters=YARN),
    "llama, all heads": LlamaConfig(**COMMON | {"num_key_value_heads": 4}),
    "mistral": MistralConfig(**COMMON, sliding_window=None),
    "mistral, wide window": MistralConfig(**COMMON, sliding_window=128),
    "qwen2": Qwen2Config(**COMMON | WIDE),
    "qwen2, tied": Qwen2Config(**COMMON | WIDE, tie_word_embeddings=True),
    "qwen2, linear": Qwen2Config(**COMMON | WIDE, rope_parameters=LINEAR),
    "qwen2, yarn": Qwen2Config(**COMMON | WIDE, rope_parameters=YARN),
    "qwen3": Qwen3Config(**COMMON),
    "qwen3, tied": Qwen3Config(**COMMON, tie_word_embeddings=True),
    "qwen3, linear": Qwen3Config(**COMMON, rope_parameters=LINEAR),
    "qwen3, yarn": Qwen3Config(**COMMON, rope_parameters=YARN),
}


def lively(config: Any) -> Any:
    """A model in float32 with all its weights random, biases and norms too."""
    torch.manual_seed(3)
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            around = 1.0 if "norm" in name else 0.0
            parameter.normal_(around, 0.3 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5)
    return made


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    made = lively(CONFIGS[name])
    path = tmp_path / "m.gguf"
    write_gguf(made, path)
    theirs = Plain(str(path), context=128)
    (text,) = random_texts([100])
    with torch.no_grad():
        own = made(torch.tensor([text])).logits[0].numpy()
    for n in (1, 7, 31, 100):
        row = theirs.after(text[:n])
        assert row.shape == (VOCAB,)
        assert np.abs(row - own[n - 1]).max() < 2e-4 * np.abs(own).max(), f"after {n} tokens"
    assert own.std() > 0.1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GemmaConfig(**COMMON), "model_type=gemma"),
        (Phi3Config(**COMMON), "model_type=phi3"),
        (LlamaConfig(**COMMON, hidden_act="gelu"), "model_type=llama, hidden_act=gelu"),
        (
            LlamaConfig(**COMMON, rope_parameters=ROPE | {"rope_type": "dynamic", "factor": 2.0}),
            "model_type=llama, rope_type=dynamic",
        ),
        (Qwen3Config(**COMMON, rope_parameters=LLAMA3), "model_type=qwen3, rope_type=llama3"),
        (Qwen3Config(**COMMON, attention_bias=True), "model_type=qwen3, attention_bias"),
        (MistralConfig(**COMMON, sliding_window=64), "model_type=mistral, sliding_window=64"),
        (Qwen2Config(**COMMON), "model_type=qwen2, head_dim=8"),
    ],
)
def test_what_llamacpp_would_compute_otherwise_is_refused(config: Any, said: str) -> None:
    with pytest.raises(
        UserError, match=f"no conversion to GGUF for {said}: only llama, mistral, qwen2, qwen3"
    ):
        find_architecture(config)


def test_weights_without_a_place_are_refused(tmp_path: Path) -> None:
    made = lively(CONFIGS["llama"])
    made.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"no conversion to GGUF for the weight model.extra.weight"):
        write_gguf(made, tmp_path / "m.gguf")


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_half_precision_rounds_matrices_only(type: str, tmp_path: Path) -> None:
    made = lively(CONFIGS["llama, biases"])
    path = tmp_path / "m.gguf"
    write_gguf(made, path, type=type)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[type]
    rounded = {name: values.to(dtype).float() for name, values in made.state_dict().items()}
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    down = found["blk.1.ffn_down.weight"]
    assert down.tensor_type.name == type.upper()
    values = gguf.quants.dequantize(down.data, down.tensor_type)
    assert (values == rounded["model.layers.1.mlp.down_proj.weight"].numpy()).all()
    norm = found["blk.1.attn_norm.weight"]
    assert norm.tensor_type.name == "F32"
    assert (norm.data == made.state_dict()["model.layers.1.input_layernorm.weight"].numpy()).all()


def test_weights_too_large_for_half_precision_are_refused(tmp_path: Path) -> None:
    made = lively(CONFIGS["llama"])
    with torch.no_grad():
        made.lm_head.weight[0, 0] = 1e6
    with pytest.raises(
        UserError, match=r"weights of output.weight are too large for f16: choose bf16 or f32"
    ):
        write_gguf(made, tmp_path / "m.gguf", type="f16")

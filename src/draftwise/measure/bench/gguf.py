"""Writes a Llama-type model as a GGUF file (version 3), float32, without a vocabulary: ids in, ids out.

The format is ggml's docs/gguf.md; tensor names and the order of rotary rows are those of llama.cpp's `llama`
architecture.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import UserError

ALIGNMENT = 32
UINT32, FLOAT32, STRING = 4, 6, 8  # metadata types
F32 = 0  # tensor type

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: Any, path: Path) -> None:
    """Convert a loaded Transformers model.

    Raises:
        UserError: another type of model, or one that this conversion would change.
    """
    _check(model.config)
    tensors = dict(_tensors(model))
    infos, offset = [], 0
    for name, values in tensors.items():
        infos.append(_string(name) + struct.pack("<I", values.ndim))
        infos.append(struct.pack(f"<{values.ndim}QIQ", *reversed(values.shape), F32, offset))
        offset += _padded(values.nbytes)
    metadata = [_entry(key, value) for key, value in _metadata(model.config).items()]
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        file.write(b"".join(metadata + infos))
        _fill(file)
        for values in tensors.values():
            file.write(values.tobytes())
            _fill(file)


def _check(config: Any) -> None:
    odd = [name for name in ("attention_bias", "mlp_bias") if getattr(config, name, False)]
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if rope.get("rope_type", "default") != "default":
        odd.append(f"rope_type={rope['rope_type']}")
    if config.model_type != "llama" or odd:
        said = ", ".join([f"model_type={config.model_type}", *odd])
        raise UserError(f"only plain Llama models are converted, not {said}: name a GGUF file with file=PATH")


def _metadata(config: Any) -> dict[str, str | int | float]:
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return {
        "general.architecture": "llama",
        "general.alignment": ALIGNMENT,
        "llama.vocab_size": config.vocab_size,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": size,
        "llama.attention.value_length": size,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.dimension_count": size,
        "llama.rope.freq_base": float(dict(config.rope_parameters)["rope_theta"]),
        "tokenizer.ggml.model": "none",
    }


def _tensors(model: Any) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """Every weight by its GGUF name, float32, shape (rows, columns)."""
    config = model.config
    weights = {name: tensor.detach().float().cpu().numpy() for name, tensor in model.state_dict().items()}
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    yield "output_norm.weight", weights["model.norm.weight"]
    if not config.tie_word_embeddings:
        yield "output.weight", weights["lm_head.weight"]
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for theirs, name in LAYER.items():
            values = weights[f"model.layers.{layer}.{theirs}.weight"]
            if name in heads:
                values = _rotated(values, heads[name])
            yield f"blk.{layer}.{name}.weight", np.ascontiguousarray(values)


def _rotated(values: Any, heads: int) -> Any:
    """Rows in llama.cpp's rotary order: pairs are adjacent, not half a head apart."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _entry(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", STRING) + _string(value)
    kind, code = (FLOAT32, "f") if isinstance(value, float) else (UINT32, "I")
    return _string(key) + struct.pack(f"<I{code}", kind, value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padded(length: int) -> int:
    return length + -length % ALIGNMENT


def _fill(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))

"""The Transformers models that llama.cpp runs: what a GGUF file says about them, and their weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import UserError
from .vocabulary import writer_module

SUFFIXES = (".weight", ".bias")


@dataclass(frozen=True)
class Kind:
    """One of llama.cpp's architectures.

    `adjacent`: the two numbers that a rotary embedding turns together lie side by side, not half a head
    apart.
    `scalings`: the rotary scalings that it computes as Transformers does.
    """

    name: str
    adjacent: bool
    scalings: tuple[str, ...]


LLAMA = Kind("llama", True, ("default", "linear", "llama3", "yarn"))
KINDS = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": Kind("qwen2", False, ("default", "linear", "yarn")),
    "qwen3": Kind("qwen3", False, ("default", "linear", "yarn")),
}


def kind_of(config: Any) -> Kind:
    """The architecture for a model's configuration.

    Raises:
        UserError: another type of model, or a setting that llama.cpp does not have.
    """
    known = KINDS.get(config.model_type)
    odd = [] if known is None else list(_odd(config, known))
    if known is None or odd:
        said = ", ".join([f"model_type={config.model_type}", *odd])
        raise UserError(f"no conversion to GGUF for {said}: only {', '.join(KINDS)} models are converted")
    return known


def _odd(config: Any, kind: Kind) -> Iterator[str]:
    """The settings under which llama.cpp would compute something else."""
    rope = dict(config.rope_parameters)
    if rope.get("rope_type", "default") not in kind.scalings:
        yield f"rope_type={rope['rope_type']}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"partial_rotary_factor={rope['partial_rotary_factor']}"
    if config.hidden_act != "silu":
        yield f"hidden_act={config.hidden_act}"
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    sliding = "sliding_attention" in kinds if kinds else window is not None
    if sliding and window is not None and window < config.max_position_embeddings:
        yield f"sliding_window={window}"
    if kinds - {"full_attention", "sliding_attention"}:
        yield f"layer_types={', '.join(sorted(kinds))}"
    if kind.name == "qwen2" and _head_size(config) * config.num_attention_heads != config.hidden_size:
        yield f"head_dim={_head_size(config)}"
    if kind.name == "qwen3" and config.attention_bias:
        yield "attention_bias"
    if getattr(config, "quantization_config", None) is not None:
        yield "quantization_config"


def describe(writer: Any, model: Any) -> None:
    """Give a `GGUFWriter` the sizes and settings of a model."""
    config = model.config
    size = _head_size(config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(float(config.rms_norm_eps))
    writer.add_rope_dimension_count(size)
    rope = dict(config.rope_parameters)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    scalings = writer_module().RopeScalingType
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(scalings.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if rope.get("rope_type") == "yarn":
        trained = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        writer.add_rope_scaling_type(scalings.YARN)
        writer.add_rope_scaling_factor(float(rope["factor"]))
        writer.add_rope_scaling_orig_ctx_len(int(trained))


def tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight under llama.cpp's name, with its rows in llama.cpp's order; shape (rows, columns) or (n,).

    Raises:
        UserError: a weight that llama.cpp's architecture does not have.
    """
    config, kind = model.config, kind_of(model.config)
    gguf = writer_module()
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind.name),
        config.num_hidden_layers,
    )
    if dict(config.rope_parameters).get("rope_type") == "llama3":
        yield "rope_freqs.weight", _rotary_factors(model)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for theirs, values in model.state_dict().items():
        if theirs == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(theirs, try_suffixes=SUFFIXES)
        if name is None:
            raise UserError(f"no conversion to GGUF for the weight {theirs}")
        part = name.split(".")[-2]
        values = values.detach().cpu()
        yield name, _rotated(values, heads[part]) if kind.adjacent and part in heads else values


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rotated(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in llama.cpp's rotary order: pairs are adjacent, not half a head apart."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(values.shape)


def _rotary_factors(model: Any) -> torch.Tensor:
    """By how much each frequency of the rotary embedding is lower than without scaling, shape (size / 2,)."""
    scaled = model.model.rotary_emb.inv_freq.float().cpu()
    steps = torch.arange(0, 2 * len(scaled), 2, dtype=torch.float32) / (2 * len(scaled))
    plain = 1.0 / dict(model.config.rope_parameters)["rope_theta"] ** steps
    return torch.as_tensor(plain / scaled)

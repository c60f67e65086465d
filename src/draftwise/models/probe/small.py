"""Any configuration of Transformers made small: sizes by the names of fields, with every kind of layer."""

from __future__ import annotations

import dataclasses
import re
from logging import getLogger
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from ..runner.recurrent import own_layers
from ..stages import quiet
from .readings import PROMPT, made_up, own_text

VOCAB = 61
POSITIONS = 64  # short enough that a test runs past them
WINDOW = 9
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = 4  # at most, unless there are more kinds of layers

WINDOWS = r"max_position_embeddings|n_positions|n_ctx|max_(seq_len|target_positions)|model_max_length"
TRAINED = r"original_max_position_embeddings|context_length"

# Sizes by the name of the field, the first pattern that fits; what fits none and is large becomes 32.
SIZES: tuple[tuple[str, Any], ...] = (
    (r"seed|.*max_distance|sampling_rate|chunk_size_feed_forward|.*_scal\w*|.*multiplier", None),
    (r"keep_window_size", None),  # its choice of keys is open as well: they tie
    (r"(.*_)?vocab(_size)?(_per_layer_input|_base)?|decoder_vocab_size|.*hash_byte_group_vocab", VOCAB),
    (WINDOWS, POSITIONS),
    (TRAINED, POSITIONS // 2),
    (r".*sliding_window(_size)?|window_size|local_attention|.*attention_window\w*", WINDOW),
    (r".*chunk_length", 8),
    (r"codebook_size", 64),
    (r"attention_chunk_size", 8),
    (r".*(key_value_heads|kv_heads|kv_n_heads|query_groups|key_heads|value_heads)", 2),
    (r"index(er)?_n_heads", 16),  # fewer give scores of exactly zero, and the choice of keys would be open
    (r"(num_|n_)?(\w*attention_)?heads?|n_head|\w*_attention_heads|num_heads|linear_num_heads", 4),
    (r"mamba_n\w*_heads|mamba_num_heads|n_mamba_heads", 8),
    (r"\w*head_?dim|d_head|d_kv|dim_head|\w*head_size|kv_channels|mamba_d_head|rotary_dim", 16),
    (r"(n|num)_\w*shared_experts", 1),
    (r"(num|n|moe_num)_(routed_|local_)?experts|zero_expert_num", 4),
    (r"(num_)?experts_per_tok(en)?|moe_k|moe_top_?k|num_experts_per_tok(en)?", 2),
    (r"n_group|topk_group|num_expert_group|n_groups|mamba_n_?groups|o_groups", 1),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index|index_topk_blocks", 1),
    (r"index_topk|index_block_size", 8),
    (r"d_model|n_embd|hidden_size(_global)?|emb(edding)?_dim|word_embed_proj_dim|backbone_hidden_size", 64),
    (r"lru_width|attention_hidden_size|embedding_size|embed_dim|input_size|ple_embed_dim", 64),
    (r"\w*rank", 16),
)
NUMBER_OF_LAYERS = (
    r"(num_|n_)?(hidden_|decoder_|encoder_|conf_num_hidden_|global_)?layers?|n_layer|num_blocks"
    r"|num_(de|en)coder_layers|(de|en)coder_layers|depth|num_layers_per_stack"
)
INDICES = r".*(layer_ids|idxs|indexes|indices)|moe_layers|cross_attention_layers|mlp_only_layers"


def small(made: Any, *, kept: str = "", **hints: Any) -> Any:
    """A configuration like `made` with small sizes and every kind of layer that it has.

    Fields whose names match `kept` stay as they are. `hints` are fields that the recipe cannot find out;
    those of an inner configuration as a dictionary.
    """
    kind = type(made)
    own, names = kind(), [f.name for f in dataclasses.fields(kind) if not f.name.startswith("_")]
    values = {name: _value(made, kind, name) for name in names}
    inner = {n: v for n, v in values.items() if isinstance(v, PreTrainedConfig)}
    values = {n: v for n, v in values.items() if n not in inner}
    layers = _layers(values)
    fields = {n: v if re.fullmatch(kept, n) else _smaller(n, v, layers) for n, v in values.items()}
    if values.get("num_attention_heads", 0) == values.get("num_key_value_heads"):
        fields["num_key_value_heads"] = fields["num_attention_heads"]  # latent attention has no groups
    if "is_decoder" in values:
        fields["is_decoder"] = True
    fields = {n: v for n, v in fields.items() if v != _value(own, kind, n)}
    for name, part in inner.items():
        fields[name] = small(part, kept=kept, **hints.get(name, {}))
    return kind(**fields | {n: v for n, v in hints.items() if n not in inner})


def _layers(values: dict[str, Any]) -> list[int]:
    """The layers to keep, by their numbers: the first of every kind, and at least two."""
    depth = next((v for n, v in values.items() if re.fullmatch(NUMBER_OF_LAYERS, n) and _whole(v)), 0)
    lists = [v for v in values.values() if isinstance(v, (list, tuple)) and len(v) == depth]
    kinds = list(zip(*lists, strict=True)) if lists else []
    first = [i for i, k in enumerate(kinds) if kinds.index(k) == i][:LAYERS]
    return first if len(first) > 1 else [0, 1][: max(depth, 1)]


def _value(made: Any, kind: type[Any], name: str) -> Any:
    try:
        return getattr(made, name, None)
    except Exception:  # Transformers refuses to name one value for a field that differs by layer
        return next(field.default for field in dataclasses.fields(kind) if field.name == name)


def _smaller(name: str, value: Any, layers: list[int]) -> Any:
    if name in TOKENS:
        return TOKENS[name] if value is not None else None
    if name == "head_dim" and value is None:
        return 16
    if isinstance(value, (list, tuple)) and value:
        if re.fullmatch(INDICES, name):
            return [i for i in value if i < len(layers)]
        if len(value) > max(layers) and len(value) > 6:
            value = [value[i] for i in layers]
        return [_smaller(name, v, layers) for v in value]
    if not _whole(value):
        return value
    if re.fullmatch(NUMBER_OF_LAYERS, name):
        return min(value, len(layers))
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return value if size is None else min(value, size)
    if name.endswith(("_token_id", "_token_index", "_index", "_offset")):
        return value if value < VOCAB else VOCAB - 1
    return min(value, 32) if value > 100 else value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


LOG = getLogger(__name__)
SEEN = (DynamicLayer, DynamicSlidingWindowLayer)  # they hold keys and values, and masks decide what is seen


def selects(model: Any) -> bool:
    """Whether its cache holds more than keys, values and states: what an index chooses tokens by."""
    text = model.config.get_text_config(decoder=True)
    layers = [layer for layer in own_layers(text) if isinstance(layer, DynamicLayer)]
    return any(type(x) not in SEEN and not isinstance(x, LinearAttentionCacheLayerMixin) for x in layers)


def miniature(model: Any) -> Any:
    """A small model of the class and with the kinds of layers of this one; None if it cannot be made."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    attention = inner.config.get_text_config(decoder=True)._attn_implementation
    try:
        config = small(inner.config, kept=f"{WINDOWS}|{TRAINED}")
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            made = type(inner)._from_config(config, attn_implementation=attention).float().eval()
            spread(made, 0, 3.0, 0.1)
            own_text(made, made_up(PROMPT, config))
    except Exception as trouble:  # sizes that do not go together may raise anything
        LOG.info("%s: no small model of the class could be made: %s", type(inner).__name__, trouble)
        return None
    return made


@torch.no_grad()
def spread(made: Any, seed: int, scale: float, embeddings: float) -> None:
    """Random weights so large that attention is sharp: a wrong place or mask shows at once."""
    draw = torch.Generator().manual_seed(seed)
    tables = {id(m.weight) for m in made.modules() if isinstance(m, torch.nn.Embedding)}
    for parameter in made.parameters():
        if parameter.dim() > 1:
            size = scale * (embeddings if id(parameter) in tables else 1.0)
            parameter.normal_(0.0, size / parameter.shape[-1] ** 0.5, generator=draw)
        elif not parameter.any():
            parameter.normal_(0.0, 0.1, generator=draw)  # biases

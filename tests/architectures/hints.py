"""What the recipe for small configurations cannot find out, by model type, and the variants of the sweep."""

from __future__ import annotations

from typing import Any

LINEAR = ["linear_attention", "full_attention"]
KINDS = ["sliding_attention", "full_attention"]

SWA = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
DOTS = {f"swa_{name}": size for name, size in SWA.items()} | {
    "swa_head_dim": 32,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 16,
}
SHARED = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": KINDS * 2}
ASSISTANT = {
    "text_config": {
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "model_type": "gemma4_text",
    }
}
QWEN4 = {
    "layer_types": ["linear_attention", "indexed_attention"],
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}

HINTS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 61},
    "cohere_compass_text": {
        "rope_parameters": {k: {"rope_type": "default", "rope_theta": 1e4} for k in KINDS}
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": DOTS,
    "dots3_note_text": DOTS,
    "gemma3n": {"text_config": SHARED},
    "gemma3n_text": SHARED,
    "gemma4_assistant": ASSISTANT,
    "gemma4_unified_assistant": ASSISTANT,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": LINEAR},
    "hrm_text": {"num_hidden_layers": 1, "num_layers_per_stack": None},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_head_dim": 32},
    "mamba2": {"num_heads": 8, "hidden_size": 64, "head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp": QWEN4,
    "qwen4_exp_text": QWEN4,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds": False},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "num_heads": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_head_dim": 32,
        "attention_hidden_size": 128,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
}

FULL = ["full_attention"] * 2
SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    """Rope parameters that change within the 64 positions of a small model."""
    return {
        "rope_parameters": {
            "rope_type": kind,
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 32,
            **more,
        }
    }


LONG = {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8}

# `type/what differs` and the fields that make the difference.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama/tied": {"tie_word_embeddings": True},
    "llama/window-ignored": {"sliding_window": 9},
    "llama/linear": rope("linear"),
    "llama/dynamic": rope("dynamic"),
    "llama/yarn": rope("yarn"),
    "llama/llama3": rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
    "llama/longrope": rope("longrope", **LONG) | {"original_max_position_embeddings": 32},
    "phi3/longrope": rope("longrope", **LONG)
    | {"original_max_position_embeddings": 32, "sliding_window": None},
    "phi3/window": {"sliding_window": 9},
    "stablelm/window-ignored": {"sliding_window": 9},
    "phi/window-ignored": {"sliding_window": 9},
    "granite/window-ignored": {"sliding_window": 9},
    "olmo2/window-ignored": {"sliding_window": 9},
    "gpt_neox/window-ignored": {"sliding_window": 9},
    "mistral/no-window": {"sliding_window": None},
    "qwen2/window": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3/window": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "starcoder2/no-window": {"sliding_window": None},
    "gemma2/eager": {"attn_implementation": "eager"},
    "gemma3_text/bidirectional": {"use_bidirectional_attention": True},
    "gemma3_text/all-sliding": {"layer_types": ["sliding_attention"] * 2},
    "llama4_text/full": {"layer_types": FULL * 2},
    "llama4_text/chunked": {"layer_types": ["chunked_attention"] * 4},
    "bloom/eager": {"attn_implementation": "eager"},
    "falcon/alibi": {"alibi": True},
    "falcon/new": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon/sequential": {"multi_query": False, "parallel_attn": False, "num_kv_heads": 4},
    "gpt_bigcode/many-heads": {"multi_query": False},
    "mpt/cache": {"use_cache": True},
    "mpt/no-cache": {"use_cache": False},
    "granitemoehybrid/attention-only": {"layer_types": FULL},
    "granitemoehybrid/rope": {"layer_types": FULL, "position_embedding_type": "rope"},
    "lfm2/attention-only": {"layer_types": FULL * 2},
    "qwen3_next/attention-only": {"layer_types": FULL},
    "qwen3_5_text/attention-only": {"layer_types": FULL},
    "minimax/attention-only": {"layer_types": FULL},
    "bamba/attention-only": {"attn_layer_indices": [0, 1]},
    "gemma4_text/moe": {
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
    },
    "deepseek_v3/eager": {"attn_implementation": "eager"},
    "gpt2/eager": {"attn_implementation": "eager"},
    "llama/eager": {"attn_implementation": "eager"},
    "biogpt/eager": {"attn_implementation": "eager"},
    "bart/eager": {"attn_implementation": "eager"},
    "cohere_compass_text/sliding": {"layer_types": KINDS},
    "deepseek_v4/sliding": {
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"]
    },
    "dots1/sliding": {"layer_types": KINDS, "sliding_window": 9},
    "laguna/sliding": {"layer_types": KINDS, "sliding_window": 9},
    "mellum/sliding": {"layer_types": KINDS, "sliding_window": 9},
    "minimax_m3_vl_text/sparse": SPARSE,
    "minimax_m3_vl_text/short-blocks": SPARSE | {"index_block_size": 4, "index_topk_blocks": 2},
    "ministral/full": {"layer_types": KINDS},
    "qwen2_moe/sliding": {"layer_types": KINDS, "sliding_window": 9, "use_sliding_window": True},
    "smollm3/sliding": {"layer_types": KINDS, "sliding_window": 9, "use_sliding_window": True},
    "zaya/sliding": {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 9},
    "gpt_neo/global": {"attention_types": [[["global"], 2]]},
}

"""What the recipe for small configurations cannot find out, by model type."""

from __future__ import annotations

from typing import Any

from tests.architectures.hints import DOTS, QWEN4

VISION = {"image_size": 32, "patch_size": 8}
CROSSED = {"decoder": {"add_cross_attention": True}}
MARKS = {"vision_start_token_id": 50, "vision_end_token_id": 51, "audio_start_token_id": 52}
START = MARKS | {"audio_end_token_id": 53}
GEMMA4 = {
    "model_type": "gemma4_vision",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}
PIXTRAL = {"vision_config": {"patch_size": 4}}
SAM = {"hidden_size": 32, "output_channels": 16, "downsample_channels": [32, 32], "global_attn_indexes": [1]}
OCR = {"sam_config": SAM | {"image_size": 64, "patch_size": 4}, "encoder_config": {"hidden_size": 32}}
CODES = {f"IMGIMG{''.join(chr(65 + int(d)) for d in str(i))}A": 40 + i for i in range(16)}
VISUAL = {f"<|visual token {i:06}|>": 40 + i for i in range(16)}
TOKENIZER = {"downsampling_ratios": [2, 2], "depths": [1, 1, 1], "num_filters": 8}
ROPE = {"rope_type": "default", "rope_theta": 1e4}

HINTS: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {1: 2, 4: 2, 16: 4}, "vision_config": VISION},
    "blip-2": {"image_token_index": 58},
    "chameleon": {"vocabulary_map": {"<image>": 58, **CODES}, "vq_config": {"num_embeddings": 16}},
    "cohere_compass": {
        "text_config": {"rope_parameters": {k: ROPE for k in ("sliding_attention", "full_attention")}}
    },
    "cosmos3_edge": {"vision_config": {"num_patches": 16}},
    "deepseek_ocr2": {
        "vision_config": OCR | {"encoder_config": {"hidden_size": 32, "num_key_value_heads": 4}},
        "text_config": {
            "num_experts_per_tok": 2,
            "mlp_layer_types": ["dense", "sparse"],
            "n_group": 1,
            "topk_group": 1,
        },
    },
    "deepseek_vl_hybrid": {"high_res_vision_config": {"global_attn_indexes": [1]}},
    "dia": {
        "delay_pattern": [0, 8, 9, 10, 11, 12, 13, 14, 15],
        "decoder_config": {"num_channels": 9, "cross_hidden_size": 64},
    },
    "dots3_note": {
        "text_config": DOTS,
        "vision_config": {"hidden_size": 64, "adapter_in_dim": 64, "adapter_out_dim": 64},
        "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64},
    },
    "emu3": {
        "vocabulary_map": {"<image>": 58, "<|extra_200|>": 57, **VISUAL},
        "vq_config": {"hidden_size": 128, "num_attention_heads": 1, "codebook_size": 16},
    },
    "encoder-decoder": CROSSED,
    "ernie4_5_vl_moe": {
        "text_config": {"rope_parameters": ROPE | {"mrope_section": [3, 3, 2]}},
    },
    "florence2": {"image_token_id": 58},
    "fun_asr_nano": {
        "adaptor_config": {"hidden_size": 64, "intermediate_size": 16},
        "audio_config": {"max_position_embeddings": 256},
    },
    "fuyu": {"image_size": 32, "patch_size": 8},
    "gemma3": {"mm_tokens_per_image": 4},
    "gemma4": {"audio_config": None, "vision_config": GEMMA4},
    "gemma4_unified": {
        "audio_config": None,
        "vision_config": GEMMA4 | {"model_type": "gemma4_unified_vision"},
    },
    "glm5_next": {"text_config": {"index_topk": 16}},
    "granite4_vision": {
        "vision_config": VISION,
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [1, 1, 1, 1],
        "downsample_rate": "1/2",
        "image_grid_pinpoints": [[32, 32]],
        "image_seq_length": 4,
    },
    "granite_docling": {"vision_config": VISION, "scale_factor": 2},
    "granite_speech": {"window_size": 10, "downsample_rate": 5},
    "granite_speech_plus": {"window_size": 10, "downsample_rate": 5},
    "idefics3": {"vision_config": VISION, "scale_factor": 2},
    "inkling2": {"vision_config": {"patch_size": 4, "text_hidden_size": 64}},
    "instructblip": {"image_token_index": 58},
    "instructblipvideo": {"video_token_index": 58},
    "kimi_k25": {"projection_hidden_size": 64},
    "led": {"attention_window": [8, 8]},
    "lfm2_vl": {"vision_config": {"num_patches": 16, "patch_size": 4}},
    "llama4": {
        "vision_config": VISION
        | {
            "intermediate_size": 256,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        }
    },
    "mistral3": PIXTRAL,
    "mistral_large4": PIXTRAL,
    "mllama": {
        "vision_config": VISION | {"vision_output_dim": 192, "intermediate_layers_indices": [0, 1]},
        "text_config": {"cross_attention_layers": [1]},
    },
    "molmo2": {
        "adapter_config": {"vision_feature_layer": [1, 0]},
        "vision_config": {"image_size": [32, 32], "patch_size": 8, "num_position_embeddings": 16},
    },
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "moonshine_streaming": {
        "num_key_value_heads": 4,
        "encoder_config": {"sample_rate": 16000, "sliding_windows": [[16, 4], [16, 0]], "hidden_size": 64},
    },
    "muse_glimmer": {"out_hidden_size": 256},
    "muse_spark": {"out_hidden_size": 256},
    "nemo_speechlm": {
        "audio_config": {
            "diarization_config": {
                "chunk_length": 64,
                "chunk_right_context": 8,
                "chunk_left_context": 8,
                "head_config": {"audio_hidden_size": 64},
            }
        }
    },
    "nemotron_h_omni": {
        "vision_hidden_size": 64,
        "image_token_id": 58,
        "vision_config": {"video_temporal_patch_size": 2},
    },
    "paddleocr_vl": {"text_config": {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3]}}},
    "pp_formulanet": {"vision_config": {"decoder_hidden_size": 64, "post_conv_out_channels": 64}},
    "qwen2_5_omni_thinker": START,
    "qwen3_asr": {"audio_config": {"n_window_infer": 100, "output_dim": 64}},
    "qwen3_omni_moe_thinker": START,
    "qwen4_exp": {"text_config": QWEN4},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "smolvlm": {"vision_config": VISION, "scale_factor": 2},
    "speech-encoder-decoder": CROSSED,
    "step3p7": {"text_config": {"sliding_window": 9}},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4, "vision_config": VISION}},
    "unlimited_ocr": {"vision_config": OCR},
    "vibevoice": {"audio_config": TOKENIZER, "semantic_model_config": TOKENIZER},
    "vibevoice_asr": {
        "acoustic_tokenizer_chunk_size": 64,
        "acoustic_tokenizer_encoder_config": TOKENIZER,
        "semantic_tokenizer_encoder_config": TOKENIZER,
    },
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "vision-encoder-decoder": CROSSED,
}

# Settings of generation without which a class' own `generate` raises, and arguments that it asks for.
SETTINGS: dict[str, dict[str, Any]] = {
    "pop2piano": {"composer_to_feature_token": {f"composer{i}": i for i in range(21)}},
}
ARGUMENTS: dict[str, dict[str, Any]] = {"pop2piano": {"composer": "composer1"}}

# Classes that no made-up model can show, and why.
APART: dict[str, str] = {
    "dia": "it writes sound, and its own `generate` ignores `custom_generate`",
    "diffusion_gemma": "its own `generate` denoises blocks of tokens: none follows from those before it",
    "pi0": "it has no `generate`: it writes actions",
    "qwen2_5_omni": "its `generate` is that of its parts; the one that writes text is `qwen2_5_omni_thinker`",
    "qwen3_omni_moe": "its `generate` is that of its parts: `qwen3_omni_moe_thinker` writes text",
}

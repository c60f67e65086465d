"""What the recipe for small configurations cannot find out, by model type."""

from __future__ import annotations

from typing import Any

VISION = {"image_size": 32, "patch_size": 8}

HINTS: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {1: 2, 4: 2, 16: 4}, "vision_config": VISION},
    "blip-2": {"image_token_index": 58},
    "instructblip": {"image_token_index": 58},
    "chameleon": {"vocabulary_map": {"<image>": 58, "IMGIMGAA": 57}},
    "emu3": {"vocabulary_map": {"<image>": 58}},
    "deepseek_vl_hybrid": {"high_res_vision_config": {"global_attn_indexes": [1]}},
    "dots3_note": {"vision_config": {"adapter_in_dim": 64, "adapter_input_size": 64}},
    "gemma3": {"mm_tokens_per_image": 4},
    "gemma4": {"audio_config": None},
    "gemma4_unified": {"audio_config": None},
    "glm5_next": {"text_config": {"index_topk": 16}},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "florence2": {"image_token_id": 58},
    "smolvlm": {"vision_config": VISION, "scale_factor": 2},
    "idefics3": {"vision_config": VISION, "scale_factor": 2},
    "granite_docling": {"vision_config": VISION, "scale_factor": 2},
    "lfm2_vl": {"vision_config": {"num_patches": 16, "patch_size": 4}},
    "llama4": {
        "vision_config": {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    },
    "mllama": {"vision_config": {"vision_output_dim": 64}},
}

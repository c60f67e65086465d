"""Small random models that read more than text: a picture, or the text of an encoder."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GenerationConfig,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from draftwise.models.probe.small import spread

VOCAB = 64
IMAGE = 62
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
}
VISION = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "patch_size": 4}
ENCODED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def ready(made: Any, seed: int = 0, scale: float = 2.0, embeddings: float = 0.25) -> Any:
    """Random weights that write a text which moves, and settings that ask for nothing but a start."""
    spread(made, seed, scale, embeddings)
    plain: Any = GenerationConfig
    made.generation_config = plain(decoder_start_token_id=1, bos_token_id=1, pad_token_id=0)
    return made.float().eval()


def gemma3() -> Any:
    """Sliding windows, and images whose tokens see each other."""
    text: dict[str, Any] = {**TEXT, "num_hidden_layers": 4, "sliding_window": 7}
    text["layer_types"] = ["sliding_attention", "full_attention"] * 2
    vision = {**VISION, "num_hidden_layers": 1, "image_size": 8}
    config = Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=IMAGE,
        boi_token_index=60, eoi_token_index=61,
    )  # fmt: skip
    return ready(Gemma3ForConditionalGeneration(config))


def qwen2_vl() -> Any:
    """Positions in three dimensions, which a text after an image continues elsewhere than at its length."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4}
    config = Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, image_token_id=IMAGE,
        video_token_id=61, vision_start_token_id=60, vision_end_token_id=59,
    )  # fmt: skip
    return ready(Qwen2VLForConditionalGeneration(config))


def bart(seed: int = 0) -> Any:
    """Learned positions and cross-attention."""
    config = BartConfig(**ENCODED, max_position_embeddings=128, forced_eos_token_id=None)
    return ready(BartForConditionalGeneration(config), seed + 1, 6.0, 1.0)


def t5(seed: int = 0) -> Any:
    """Relative positions, which count by the cache's length."""
    config = T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)
    config.decoder_start_token_id = 1
    return ready(T5ForConditionalGeneration(config), seed + 3)


def whisper(seed: int = 0, layers: int = 2) -> Any:
    """Sound of 32 frames; its own `generate` prepares more than others do."""
    sizes: dict[str, Any] = {**ENCODED, "decoder_layers": layers, "encoder_layers": layers}
    config = WhisperConfig(**sizes, num_mel_bins=8, max_source_positions=16, max_target_positions=64)
    return ready(WhisperForConditionalGeneration(config), seed)


def picture(seed: int, *shape: int) -> torch.Tensor:
    """Random pixels."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def text(rows: int, n: int, seed: int = 0) -> torch.Tensor:
    """Random tokens, shape (rows, n)."""
    return torch.randint(3, 58, (rows, n), generator=torch.Generator().manual_seed(seed))


def shown(kind: str, rows: int = 2) -> dict[str, Any]:
    """Inputs of a model of this kind; in a batch the first row of a prompt is padded on the left."""
    ids = text(rows, 14)
    if kind in ("bart", "t5"):
        mask = torch.ones_like(ids)
        mask[0, 11:] = 0
        return {"input_ids": ids, "attention_mask": mask}
    if kind == "whisper":
        return {"input_features": picture(1, rows, 8, 32)}
    ids[:, 4:8] = IMAGE
    mask = torch.ones_like(ids)
    if rows > 1:
        ids[0, :2] = mask[0, :2] = 0
    seen = (ids == IMAGE).long()
    named = {"input_ids": ids, "attention_mask": mask}
    if kind == "gemma3":
        return {**named, "token_type_ids": seen, "pixel_values": picture(2, rows, 3, 8, 8)}
    grid = torch.tensor([[1, 4, 4]] * rows)
    return {
        **named,
        "mm_token_type_ids": seen,
        "pixel_values": picture(2, 16 * rows, 96),
        "image_grid_thw": grid,
    }


KINDS: dict[str, Any] = {"gemma3": gemma3, "qwen2_vl": qwen2_vl, "bart": bart, "t5": t5, "whisper": whisper}

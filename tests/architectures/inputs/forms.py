"""The forms in which processors hand pictures and sound to a model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

Given = dict[str, Any]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(n: int, seed: int = 0) -> Tensor:
    """Random tokens, none of them special, shape (1, n)."""
    return torch.randint(3, 50, (1, n), generator=torch.Generator().manual_seed(seed))


def part(config: Any, *names: str) -> Any:
    """The first inner configuration of these names; else the configuration itself."""
    return next((found for name in names if (found := getattr(config, name, None)) is not None), config)


def number(config: Any, *names: str, default: int) -> int:
    """The first of these fields, as one number."""
    for name in names:
        found = getattr(config, name, None)
        found = found[0] if isinstance(found, (list, tuple)) and found else found
        found = found.get("height") if isinstance(found, dict) else found
        if isinstance(found, int):
            return found
    return default


def pictures(model: Any, seed: int) -> Iterator[Given]:
    """One picture in each of the forms that processors make."""
    vision = part(model.config, "vision_config", "encoder", "vision_model_config")
    named = inspect.signature(model.forward).parameters
    size = number(vision, "image_size", "img_size", "input_size", default=32)
    patch = number(vision, "patch_size", "spatial_patch_size", default=4)
    channels = number(vision, "num_channels", "in_channels", "in_chans", default=3)
    frames = number(vision, "temporal_patch_size", "patch_temporal", default=1)
    merge = number(vision, "spatial_merge_size", "merge_size", default=2)
    sides = torch.tensor([[size, size]])
    whole = drawn(1, channels, size, size, seed=seed)
    extra: Given = {"image_sizes": sides} if "image_sizes" in named else {}
    if "high_res_pixel_values" in named:
        high = number(part(model.config, "high_res_vision_config"), "image_size", default=size)
        extra["high_res_pixel_values"] = drawn(1, channels, high, high, seed=seed)
    if "image_position_ids" in named:
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1)
        for side in (patch, patch * number(vision, "pooling_kernel_size", default=1)):
            patches = drawn(1, 16, channels * side**2, seed=seed).sigmoid()
            yield {"pixel_values": patches, "image_position_ids": places.view(1, 16, 2)}
    if "image_token_pooling" in named:
        patches = drawn(1, (size // patch) ** 2, channels * patch**2, seed=seed)
        pooled = {
            "image_token_pooling": torch.arange(16).view(4, 4),
            "image_grids": torch.tensor([[2, 2, 0, 0]]),
        }
        yield {"pixel_values": patches, **pooled, "image_num_crops": torch.tensor([1])}
        yield {"pixel_values": patches, **pooled}
    if "target_sizes" in named:
        strip = drawn(1, channels, patch, 16 * patch, seed=seed)
        yield {"pixel_values": strip, "target_sizes": torch.tensor([[4, 4]])}
    if "aspect_ratio_ids" in named:
        tiles = number(vision, "max_num_tiles", default=4)
        shown = drawn(1, 1, tiles, channels, size, size, seed=seed)
        ratio = {"aspect_ratio_ids": torch.tensor([[1]]), "aspect_ratio_mask": torch.ones(1, 1, tiles).long()}
        yield {"pixel_values": shown, **ratio}
    grid = torch.tensor([[1, 2 * merge, 2 * merge]])
    flat = drawn(4 * merge**2, channels * frames * patch**2, seed=seed)
    for key in ("image_grid_thw", "grid_thw", "image_grids", "image_grid_hw"):
        if key in named:
            yield {"pixel_values": flat, key: grid}
            yield {"pixel_values": flat, key: grid[:, 1:]}
            yield {"pixel_values": flat.view(4 * merge**2, channels * frames, patch, patch), key: grid}
            yield {"pixel_values": flat.view(1, 4 * merge**2, channels * frames, patch, patch), key: grid}
            yield {"pixel_values": flat, key: grid, "image_merge_sizes": torch.tensor([merge])}
            squares = drawn(4, merge * patch, merge * patch, channels, seed=seed)
            yield {"pixel_values": squares, key: torch.tensor([[1, 2, 2]])}
    yield {"pixel_values": drawn(4, frames, patch, patch, channels, seed=seed)}
    yield {"pixel_values": whole, **extra}
    yield {"pixel_values": whole}
    if "pixel_values_images" in named:
        yield {"pixel_values_images": whole}
    for n in (1, 2, 3):
        many = drawn(1, n, channels, size, size, seed=seed)
        yield {"pixel_values": many, **extra}
        if "pixel_attention_mask" in named:
            yield {"pixel_values": many, "pixel_attention_mask": torch.ones(1, n, size, size).long()}
            yield {"pixel_values": many, "pixel_attention_mask": torch.ones(1, n).bool()}
    if "flattened_patches" in named:
        patches = drawn(1, 4, 2 + number(vision, "patch_embed_hidden_size", default=0), seed=seed)
        patches[..., :2] = torch.tensor([[1, 1], [1, 2], [2, 1], [2, 2]])
        yield {"flattened_patches": patches}
        own_patches = drawn(1, 4, 2 + channels * patch**2, seed=seed)
        own_patches[..., :2] = patches[..., :2]
        yield {"flattened_patches": own_patches}
    if "spatial_shapes" in named:
        shapes = torch.tensor([[4, 4]])
        mask = torch.ones(1, 16).long()
        patches = drawn(1, 16, channels * patch**2, seed=seed)
        yield {"pixel_values": patches, "spatial_shapes": shapes, "pixel_attention_mask": mask}
    if "image_patches" in named:
        yield {"image_patches": [drawn(1, 4, channels * patch**2, seed=seed)]}
        yield {"image_patches": drawn(1, 4, channels * patch**2, seed=seed)}


BINS = ("num_mel_bins", "input_feat_per_channel", "feat_in", "input_dim", "input_size", "feature_size",
        "feature_projection_input_dim", "n_mel_bins", "hidden_size")  # fmt: skip


def sounds(model: Any, seed: int) -> Iterator[Given]:
    """One piece of sound in each of the forms that processors make."""
    audio = part(model.config, "audio_config", "encoder_config", "encoder", "speech_config")
    audio = part(audio, "asr_config")
    named = inspect.signature(model.forward).parameters
    bins = number(audio, *BINS, default=80) * number(audio, "num_stacked_frames", default=1)
    positions = number(audio, "max_source_positions", default=32)
    chunk = 2 * number(audio, "n_window", default=32)
    for length in dict.fromkeys((2 * positions, chunk, 64, 128)):
        for shape in ((1, bins, length), (1, length, bins)):
            feats = drawn(*shape, seed=seed)
            yield {"input_features": feats}
            for key in ("feature_attention_mask", "input_features_mask", "attention_mask"):
                if key in named:
                    yield {"input_features": feats, key: torch.ones(1, length).long()}
                    yield {"input_features": feats, key: torch.ones(1, length).bool()}
    for key in ("input_values", "audio_values"):
        if key in named:
            yield {key: drawn(1, 3200, seed=seed)}
            yield {key: drawn(1, 1, 3200, seed=seed)}

"""Inputs for a small random model: pictures, sound, or the text of an encoder, found by trying."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.architectures.judge import reason
from tests.architectures.small import VOCAB

Given = dict[str, Any]
MOST = 80  # places of an image in a prompt, at most
TEXT = 7  # tokens after it
TRIES = 400  # forms and numbers of places that are tried


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
    frames = number(vision, "temporal_patch_size", default=1)
    merge = number(vision, "spatial_merge_size", "merge_size", default=2)
    sides = torch.tensor([[size, size]])
    whole = drawn(1, channels, size, size, seed=seed)
    extra: Given = {"image_sizes": sides} if "image_sizes" in named else {}
    if "high_res_pixel_values" in named:
        high = number(part(model.config, "high_res_vision_config"), "image_size", default=size)
        extra["high_res_pixel_values"] = drawn(1, channels, high, high, seed=seed)
    patches = drawn(1, 16, channels * patch**2, seed=seed)
    if "image_position_ids" in named:
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1)
        yield {"pixel_values": patches.sigmoid(), "image_position_ids": places.view(1, 16, 2)}
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
    for key in ("image_grid_thw", "grid_thw", "image_grids"):
        if key in named:
            yield {"pixel_values": flat, key: grid}
            yield {"pixel_values": flat, key: grid[:, 1:]}
            yield {"pixel_values": flat.view(4 * merge**2, channels * frames, patch, patch), key: grid}
            yield {"pixel_values": flat.view(1, 4 * merge**2, channels * frames, patch, patch), key: grid}
            yield {"pixel_values": flat, key: grid, "image_merge_sizes": torch.tensor([merge])}
    yield {"pixel_values": whole, **extra}
    yield {"pixel_values": whole}
    if "pixel_values_images" in named:
        yield {"pixel_values_images": whole}
    for n in (1, 2, 3):
        many = drawn(1, n, channels, size, size, seed=seed)
        yield {"pixel_values": many, **extra}
        if "pixel_attention_mask" in named:
            yield {"pixel_values": many, "pixel_attention_mask": torch.ones(1, n, size, size).long()}
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


def sounds(model: Any, seed: int) -> Iterator[Given]:
    """One piece of sound in each of the forms that processors make."""
    audio = part(model.config, "audio_config", "encoder_config", "encoder", "speech_config")
    named = inspect.signature(model.forward).parameters
    bins = [number(audio, "num_mel_bins", "input_feat_per_channel", "feat_in", "input_dim", "input_size",
                   "feature_size", "hidden_size", default=80)]  # fmt: skip
    positions = number(audio, "max_source_positions", default=32)
    for length in dict.fromkeys((2 * positions, 64, 128)):
        for shape in ((1, bins[0], length), (1, length, bins[0])):
            feats = drawn(*shape, seed=seed)
            yield {"input_features": feats}
            for key in ("feature_attention_mask", "input_features_mask", "attention_mask"):
                if key in named:
                    yield {"input_features": feats, key: torch.ones(1, length).long()}
    for key in ("input_values", "audio_values"):
        if key in named:
            yield {key: drawn(1, 3200, seed=seed)}
            yield {key: drawn(1, 1, 3200, seed=seed)}


def given(model: Any, seed: int = 0) -> Given:
    """Inputs that the model's own `generate` takes.

    Raises:
        LookupError: none of the forms, with the last error of the model.
    """
    named = inspect.signature(model.forward).parameters
    text = "input_ids" in named
    trouble: list[str] = []
    forms: list[Given] = []
    if {"pixel_values", "pixel_values_images", "flattened_patches", "image_patches"} & named.keys():
        forms += pictures(model, seed)
    if {"input_features", "input_values", "audio_values"} & named.keys():
        forms += sounds(model, seed)
    if not forms:
        forms = [{"input_ids": tokens(12, seed)}]
        text = False
    tries = TRIES
    for form in forms:
        seen: dict[str, str] = {}
        for n in places(model, text):
            tries -= 1
            if tries < 0:
                break
            inputs = form | (prompt(model, n, seed) if text else {})
            try:
                own(model, inputs, 2)
                return inputs
            except Exception as error:
                seen.setdefault(re.sub(r"\d+", "0", str(error)), reason(error))
                if not counted(error):
                    break
        trouble += seen.values()
    raise LookupError(" | ".join(dict.fromkeys(trouble)))


def counted(error: Exception) -> bool:
    """Whether another number of places may help."""
    said = str(error).lower()
    return any(word in said for word in ("token", "match", "shape", "size", "feature", "split"))


def places(model: Any, text: bool) -> Iterator[int]:
    """How many places of a picture or of sound a prompt may have."""
    yield from range(1, MOST) if text and slot(model) is not None else (0,)


def slot(model: Any) -> int | None:
    """The token that stands for a piece of a picture or of sound."""
    names = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index", "media_token_id",
             "boi_token_id", "speech_token_index", "img_context_token_id", "image_patch_id")  # fmt: skip
    sources = (model.config, getattr(model, "model", None))
    return next((v for s in sources for n in names if isinstance(v := getattr(s, n, None), int)), None)


def prompt(model: Any, n: int, seed: int) -> Given:
    """Text with `n` places for a picture."""
    ids = tokens(2 + n + TEXT, seed)
    found = slot(model)
    if found is not None:
        ids[0, 2 : 2 + n] = found
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    named = inspect.signature(model.forward).parameters
    if "image_attention_mask" in named:
        made["image_attention_mask"] = torch.ones(1, ids.shape[1], 1).long()
    if "bbox" in named:
        made["bbox"] = torch.zeros(1, ids.shape[1], 4).long()
    for key in ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"):
        if key in named:
            made[key] = (ids == (-1 if found is None else found)).long()
    return made


def own(model: Any, inputs: Given, n: int, **more: Any) -> Tensor:
    """What the model's own `generate` writes."""
    settings = {"max_new_tokens": n, "do_sample": False} | more
    out: Tensor = model.generate(**inputs, **settings)
    return out


def vocabulary() -> int:
    """The tokens of every small model."""
    return VOCAB

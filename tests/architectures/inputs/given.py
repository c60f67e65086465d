"""Inputs for a small random model: pictures, sound, or the text of an encoder, found by trying."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.architectures.judge import reason

from .forms import Given, drawn, pictures, sounds, tokens
from .hints import ARGUMENTS

MOST = 80  # places of an image in a prompt that are tried, unless an error names a number
TEXT = 7  # tokens after it
TRIES = 400  # forms and numbers of places that are tried


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
    if hasattr(model.config, "codec_config"):
        forms = [{"input_values": drawn(1, 1, 16 * int(model.config.codec_config.frame_size), seed=seed)}]
        text = False
    if not forms:
        forms = [{"input_ids": tokens(12, seed)}]
        text = False
    tries = TRIES
    for form in (one | ARGUMENTS.get(model.config.model_type, {}) for one in forms):
        seen: dict[str, str] = {}
        asks = text and not (HEARD & form.keys() and model.config.is_encoder_decoder)
        waiting, hinted, done = list(places(model, form, asks)), list[int](), set[int]()
        while (waiting or hinted) and tries:
            n = (hinted or waiting).pop(0)
            if n in done:
                continue
            done.add(n)
            tries -= 1
            inputs = form | (prompt(model, form, n, seed) if asks else {})
            try:
                own(model, inputs, 2)
                if matters(model, inputs, form):
                    return inputs
                seen.setdefault("", "what is shown changes nothing")
                break
            except Exception as error:
                known = seen.setdefault(re.sub(r"\d+", "0", str(error)), reason(error))
                if not counted(error) and len(done) > 1:
                    break
                hinted += named_in(error, n) if asks else []
                if known == reason(error) and len(done) > 1:  # the number of places changes nothing
                    break
        trouble += seen.values()
    raise LookupError(" | ".join(dict.fromkeys(trouble)))


def matters(model: Any, inputs: Given, form: Given) -> bool:
    """Whether the model looks at its pictures or sound: others change its logits."""
    parts = {k: v for k, v in form.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    if not parts:
        return True
    more: Given = {"output_logits": True, "return_dict_in_generate": True, "max_new_tokens": 2}
    said = [
        torch.stack(model.generate(**inputs | shown, **more, do_sample=False).logits)
        for shown in (parts, {k: other(k, v) for k, v in parts.items()})
    ]
    return said[0].shape != said[1].shape or not torch.equal(*said)


def other(name: str, shown: Tensor) -> Tensor:
    """Another picture or sound; the first two numbers of a flattened patch are its place."""
    made = 3.0 - 5.0 * shown
    if name == "flattened_patches":
        made[..., :2] = shown[..., :2]
    return made


def counted(error: Exception) -> bool:
    """Whether another number of places may help."""
    said = str(error).lower()
    return any(word in said for word in ("token", "match", "shape", "size", "feature", "split"))


def named_in(error: Exception, n: int) -> list[int]:
    """Numbers of places that a message hints at, where there were `n`: its numbers, and what two of them
    differ by."""
    said = [int(m) for m in re.findall(r"\b\d{1,3}\b", str(error))]
    apart = [n + a - b for a in said[-6:] for b in said[-6:] if a != b]
    return [m for m in dict.fromkeys([*reversed(said), *apart]) if 0 < m <= 600]


def places(model: Any, form: Given, text: bool) -> Iterator[int]:
    """How many places of a picture or of sound a prompt may have."""
    named = inspect.signature(model.forward).parameters
    marked = slot(model, form) is not None or "image_embeds_position_mask" in named
    yield from (2, 1, *range(3, MOST)) if text and marked else (0,)


PICTURES = ("image_token_id", "image_token_index", "boi_token_id", "img_context_token_id", "image_patch_id",
            "video_token_index", "media_token_id")  # fmt: skip
SOUNDS = ("audio_token_id", "audio_token_index", "speech_token_index")
HEARD = {"input_features", "input_values", "audio_values", "audio_input_features"}


def slot(model: Any, form: Given) -> int | None:
    """The token that stands for a piece of a picture or of sound."""
    names = (*SOUNDS, *PICTURES) if HEARD & form.keys() else (*PICTURES, *SOUNDS)
    sources = (model.config, getattr(model, "model", None))
    return next((v for n in names for s in sources if isinstance(v := getattr(s, n, None), int)), None)


def prompt(model: Any, form: Given, n: int, seed: int) -> Given:
    """Text with `n` places for a picture or for sound."""
    ids = tokens(2 + n + TEXT, seed)
    found = slot(model, form)
    if found is not None:
        ids[0, 2 : 2 + n] = found
        kind = "audio" if HEARD & form.keys() else "vision"
        for name, at in ((f"{kind}_start_token_id", 1), (f"{kind}_end_token_id", 2 + n)):
            if isinstance(mark := getattr(model.config, name, None), int):
                ids[0, at] = mark
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    named = inspect.signature(model.forward).parameters
    if "image_attention_mask" in named:
        made["image_attention_mask"] = torch.ones(1, ids.shape[1], 1).long()
    if "cross_attention_mask" in named:
        made["cross_attention_mask"] = torch.ones(1, ids.shape[1], 1, 4).long()
    if "image_embeds_position_mask" in named:
        made["image_embeds_position_mask"] = torch.zeros_like(ids)
        made["image_embeds_position_mask"][0, 2 : 2 + n] = 1
    if "qformer_input_ids" in named:
        made["qformer_input_ids"] = tokens(5, seed)
    if "bbox" in named:
        made["bbox"] = torch.zeros(1, ids.shape[1], 4).long()
    for key in ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"):
        if key in named:
            made[key] = (ids == (-1 if found is None else found)).long()
    return made


def own(model: Any, inputs: Given, n: int, **more: Any) -> Tensor:
    """What the model's own `generate` writes."""
    settings = {"max_new_tokens": n, "do_sample": False} | more
    torch.manual_seed(0)  # some encoders of sound draw noise
    out: Tensor = model.generate(**inputs, **settings)
    return out

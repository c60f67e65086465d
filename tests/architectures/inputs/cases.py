"""The models that read more than the tokens of their own text: pictures, sound, or another text."""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from draftwise.models.probe.small import VOCAB, small, spread

from .hints import HINTS, SETTINGS

MAPPINGS = {
    "image-text-to-text": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "multimodal": auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    "text-to-text": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "speech-to-text": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}


@dataclass(frozen=True)
class Case:
    """One class, of a configuration of this type; `task` is the first mapping that has it."""

    name: str
    type: str
    kind: str
    task: str

    def shard(self, n: int) -> int:
        """Which of `n` shards decodes it, the same on every machine."""
        return zlib.crc32(self.name.encode()) % n


def cases() -> list[Case]:
    """Every pair of a type and a class, once."""
    made: dict[tuple[str, str], Case] = {}
    for task, mapping in MAPPINGS.items():
        for type_, kinds in mapping.items():
            kind = kinds if isinstance(kinds, str) else kinds[0]
            name = type_ if not any(t == type_ for t, _ in made) else f"{type_}/{task}"
            made.setdefault((type_, kind), Case(name, type_, kind, task))
    return list(made.values())


def with_default_parts(config: Any) -> Any:
    """The configuration with the defaults of its inner ones' classes, from which sizes that fit are found."""
    for name, part in vars(config).items():
        if isinstance(part, transformers.PreTrainedConfig):
            setattr(config, name, type(part)())
    return config


def build(case: Case, scale: float = 2.0, embeddings: float = 0.25, seed: int = 0) -> Any:
    """The case's model, small, with random weights, in float32."""
    kind = getattr(transformers, case.kind)
    config = CONFIG_MAPPING[case.type]
    if config is not kind.config_class and isinstance(kind.config_class, type):
        config = kind.config_class
    made = (
        kind._from_config(small(with_default_parts(config()), **fields(config, HINTS.get(case.type, {}))))
        .float()
        .eval()
    )
    for module in made.modules():
        if hasattr(module, "generation_config"):
            module.generation_config = settings()
            for name, value in SETTINGS.get(case.type, {}).items():
                setattr(module.generation_config, name, value)
    spread(made, seed, scale, embeddings)
    codebooks(made, seed)
    return made


def codebooks(made: Any, seed: int) -> None:
    """Random entries in the empty codebooks of codecs, which are no parameters."""
    draw = torch.Generator().manual_seed(seed)
    for name, held in made.named_buffers():
        if "embed" in name and held.is_floating_point() and held.dim() > 1 and not held.any():
            held.normal_(generator=draw)


def settings() -> Any:
    """Settings of generation that ask for nothing but a start."""
    found: Any = transformers.GenerationConfig
    return found(decoder_start_token_id=1, bos_token_id=1, pad_token_id=0)


def fields(config: Any, hints: dict[str, Any]) -> dict[str, Any]:
    """The hints, sizes that the parts agree on, and a number of its own for each special token."""
    return numbered(config) | merged(agreed(config()), hints)


def numbered(config: Any) -> dict[str, Any]:
    """Different special tokens, from the end of the vocabulary down."""
    made, names = config(), []
    for field in dataclasses.fields(config):
        value = getattr(made, field.name, None) if field.name not in PLAIN else None
        marks = field.name.endswith(("_token_id", "_token_index", "_patch_id"))
        if marks and (isinstance(value, int) or field.name in SLOTS):
            names.append(field.name)
    return {name: VOCAB - 1 - i for i, name in enumerate(names)}


PLAIN = {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "unk_token_id"}
SLOTS = {"image_token_id", "image_token_index", "audio_token_id", "video_token_id"}  # numbered even if None
TEXT_SIZED = ("out_hidden_size", "text_hidden_size", "adapter_in_dim", "output_hidden_size")


def agreed(config: Any) -> dict[str, Any]:
    """Fields of an inner part that are sizes of another one, and sections of rotary positions."""
    found: dict[str, Any] = {}
    for name, part in vars(config).items():
        if isinstance(part, transformers.PreTrainedConfig):
            own = {size: 64 for size in TEXT_SIZED if isinstance(getattr(part, size, None), int)}
            if isinstance(getattr(part, "window_size", None), int) and hasattr(part, "spatial_merge_size"):
                own["window_size"] = 2 * part.patch_size * part.spatial_merge_size
            own |= agreed(part)
            if own:
                found[name] = own
    rope = vars(config).get("rope_parameters")
    sections = "mrope_section" in (getattr(config, "ignore_keys_at_rope_validation", None) or ())
    by_kind = isinstance(rope, dict) and any(isinstance(value, dict) for value in rope.values())
    if isinstance(rope, dict) and not by_kind and (sections or "mrope_section" in rope):
        turned = int(8 * float(rope.get("partial_rotary_factor") or 1.0))
        third = turned // 3
        found["rope_parameters"] = rope | {"mrope_section": [turned - 2 * third, third, third]}
    return found


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Hints of both, the other's first."""
    shared = one.keys() & other.keys() - {"rope_parameters"}
    both = {k: merged(one[k], other[k]) for k in shared if isinstance(one[k], dict)}
    return one | other | both

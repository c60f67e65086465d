"""How much memory a model needs, from its config.json and the headers of its weights; nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..errors import UserError

BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
CACHED = 1000  # tokens of KV cache that are counted


@dataclass(frozen=True, slots=True)
class Footprint:
    """Parameters, bytes of the weights as stored, and bytes of KV cache for 1,000 tokens in 16 bits.

    Each is None if the files do not contain it.
    """

    parameters: int | None = None
    weight_bytes: int | None = None
    cache_bytes: int | None = None


def footprint(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> Footprint:
    """The footprint of the model in a folder, or of the tensors whose names are `wanted`.

    Raises:
        UserError: config.json or a weights file cannot be read.
    """
    try:
        config = read_config(folder)
        tensors = [t for file in sorted(folder.glob("*.safetensors")) for t in _tensors(file, wanted)]
    except (OSError, ValueError) as error:
        raise UserError(f"model {str(folder)!r} cannot be read ({error}): download it again") from error
    if not tensors:
        return Footprint(cache_bytes=cache_bytes(config))
    parameters = sum(prod(tensor["shape"]) for tensor in tensors)
    stored = sum(prod(tensor["shape"]) * BITS.get(tensor["dtype"], 8) // 8 for tensor in tensors)
    return Footprint(parameters, stored, cache_bytes(config))


def read_config(folder: Path) -> Mapping[str, Any]:
    """The content of config.json; empty if there is none.

    Raises:
        ValueError: it is not a JSON object.
    """
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not isinstance(config, dict):
        raise ValueError("config.json holds no settings")
    return config


def cache_bytes(config: Mapping[str, Any]) -> int | None:
    """Bytes of keys and values for 1,000 tokens in 16 bits; None if the configuration does not determine it.

    It is an upper bound if layers use sliding windows or share their cache.
    """
    text = config.get("text_config", config)
    layers = _first(text, "num_hidden_layers", "n_layer", "n_layers")
    heads = _first(text, "num_attention_heads", "n_head", "n_heads")
    width = _first(text, "hidden_size", "n_embd", "d_model")
    if layers is None or heads is None or width is None:
        return None
    size = _first(text, "head_dim") or width // heads
    return 2 * layers * (_first(text, "num_key_value_heads") or heads) * size * 2 * CACHED


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _tensors(file: Path, wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Shape and dtype of the wanted tensors in a Safetensors file."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return [tensor for name, tensor in header.items() if name != "__metadata__" and wanted(name)]

"""Reads and writes the two files of a published head: its configuration and its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ...errors import UserError
from ..load import resolve

PICKLED = ("pytorch_model.bin", "medusa_lm_head.pt")
WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json", *PICKLED]


def folder_of(name: str) -> Path:
    """The local folder of a head: `zoo:NAME`, a folder, or a download by hub id.

    Raises:
        UserError: it does not exist, or has no config.json.
    """
    folder = Path(resolve(name))
    if not folder.is_dir():
        folder = _downloaded(name)
    if not (folder / "config.json").is_file():
        raise UserError(f"head {name!r} has no config.json: give the folder that holds it and the weights")
    return folder


def _downloaded(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=WANTED))
    except (OSError, ValueError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise UserError(
            f"cannot load the head {name!r}: {str(error).splitlines()[0].rstrip('. ')}; check the name, the "
            "network and your access to it, or name a local folder"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json.

    Raises:
        UserError: it is not a JSON object.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise UserError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} holds no settings: write what save() writes")
    return config


def read_tensors(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """The tensors of a folder whose names are `wanted`, from Safetensors or else a pickle of tensors.

    A pickle is read by `torch.load(weights_only=True)`, which runs no code.

    Raises:
        UserError: there are no weights, or they cannot be read.
    """
    files = sorted(folder.glob("*.safetensors")) or [
        folder / name for name in PICKLED if (folder / name).is_file()
    ]
    if not files:
        raise UserError(f"head {str(folder)!r} has no weights: its folder needs model.safetensors")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= _read(file, wanted) if file.suffix == ".safetensors" else _unpickled(file)
        except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
            raise UserError(f"cannot read {file}: {str(error).splitlines()[0]}; fetch it again") from error
    return {name: tensor for name, tensor in tensors.items() if wanted(name)}


def _read(file: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys() if wanted(name)}  # noqa: SIM118


def _unpickled(file: Path) -> dict[str, Tensor]:
    from pickle import UnpicklingError

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError("it holds more than tensors, which could run code when read") from error
    if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
        raise ValueError("it holds no mapping of names to tensors")
    return dict(found)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    """Load exactly these tensors into a module; buffers of rotary embeddings are left to the module.

    Raises:
        UserError: a tensor is missing, unexpected, or has another shape.
    """
    wanted = {key: tuple(t.shape) for key, t in module.state_dict().items() if "rotary_emb" not in key}
    given = {key: tuple(t.shape) for key, t in tensors.items()}
    for key in sorted(wanted.keys() | given.keys()):
        if wanted.get(key) != given.get(key):
            raise UserError(
                f"head {name!r}: the tensor {key} is {given.get(key, 'missing')} where this target asks for "
                f"{wanted.get(key, 'none')}: choose the head made for this target"
            )
    module.load_state_dict(dict(tensors), strict=False)


def write(folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors, each atomically."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    spare = place / "model.safetensors.tmp"
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, spare)
    spare.replace(place / "model.safetensors")
    spare = place / "config.json.tmp"
    spare.write_text(json.dumps(dict(config), indent=2, sort_keys=True) + "\n")
    spare.replace(place / "config.json")

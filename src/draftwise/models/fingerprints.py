"""Fingerprints of models without reading all weights: does a saved number belong to these models?"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..core.roles import Drafter
from ..specs import parse_drafter, parse_target
from .gguf.library import find_file
from .hub import cached_folder
from .load import resolve

SAMPLES, BYTES = 64, 64  # places in a file of weights, and bytes read at each of them
HEADER = 1 << 20  # bytes of a Safetensors header, which lists every tensor with its shape
HEADS = ("eagle", "medusa")  # drafters whose path is a folder of weights
VALUES = 8  # of each parameter of a model in memory


def drafter_fingerprint(drafter: Any) -> str:
    """Return a drafter's fingerprint: of a lookup its name and options, of a model or head its weights'.

    `drafter` is a spec, or what `Decoder.from_pretrained` takes.
    """
    spec = parse_drafter(drafter)
    if isinstance(spec.loaded, Drafter):
        return f"{type(spec.loaded).__module__}.{type(spec.loaded).__qualname__}"
    if spec.name in HEADS:
        return f"{spec.text} {model_fingerprint(spec.path)}"
    return model_fingerprint(spec) if spec.is_model or spec.loaded is not None else spec.text


def model_fingerprint(model: Any) -> str:
    """Return the SHA-256 of a model's configuration, its tensors' names and shapes, and some of their values.

    `model` is a spec, a name or a loaded model. A model by name and in memory has different fingerprints.
    """
    spec = parse_target(model)
    if spec.loaded is not None:
        return _of_parameters(spec.loaded)
    if spec.is_gguf:
        return _of_files(sha256(), [find_file(spec.path)])
    own = Path(resolve(spec.path))
    folder = own if own.is_dir() else cached_folder(spec.path)
    if folder is None:
        return f"no files of {spec.path}"
    digest = sha256((folder / "config.json").read_bytes())
    return _of_files(digest, sorted(folder.glob("*.safetensors")))


def _of_files(digest: Any, files: Sequence[Path]) -> str:
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(HEADER))
            for i in range(SAMPLES):
                file.seek(i * max(0, size - BYTES) // (SAMPLES - 1))
                digest.update(file.read(BYTES))
    return str(digest.hexdigest())


def _of_parameters(model: Any) -> str:
    digest = sha256(str(type(model).__qualname__).encode())
    for name, tensor in model.named_parameters():
        some = list[float]()
        if not tensor.is_meta and not hasattr(tensor, "__tensor_flatten__"):  # a quantised one has no view
            flat = tensor.detach().flatten()
            some = flat[:: max(1, len(flat) // VALUES)][:VALUES].float().tolist()
        digest.update(f"{name} {tuple(tensor.shape)} {some}\n".encode())
    return digest.hexdigest()

"""Fingerprints of models without reading all weights: does a saved number belong to these models?"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import registry
from ..core.roles import Drafter
from .gguf.names import gguf_spec
from .load import resolve

SAMPLES, BYTES = 64, 64  # places in a file of weights, and bytes read at each of them
HEADER = 1 << 20  # bytes of a Safetensors header, which lists every tensor with its shape
HEADS = ("eagle", "medusa")  # drafters whose path is a folder of weights
VALUES = 8  # of each parameter of a model in memory


def drafter_fingerprint(asked: Any) -> str:
    """A drafter's fingerprint: of a lookup by its name and options, of a model or head by its weights.

    `asked` is the drafter as given to `Decoder.from_pretrained`.
    """
    if isinstance(asked, str):
        if gguf_spec(asked) is not None:
            return model_fingerprint(asked)
        spec = registry.parse(asked)
        if spec.name == "lm":
            return model_fingerprint(spec.path)
        if spec.name in HEADS:
            return f"{asked.strip()} {model_fingerprint(spec.path)}"
        registered = spec.name in registry.names("drafters")
        return asked.strip() if registered else model_fingerprint(asked.strip().partition("?")[0])
    if isinstance(asked, Drafter):
        return f"{type(asked).__module__}.{type(asked).__qualname__}"
    return model_fingerprint(asked)


def model_fingerprint(model: Any) -> str:
    """SHA-256 of a model's configuration, its tensors' names and shapes, and a sample of their values.

    `model` is a name or a loaded model. The same model has different fingerprints by name and in memory.
    """
    if not isinstance(model, str):
        return _of_parameters(model)
    if (file := gguf_spec(model)) is not None:
        return _of_files(sha256(), [Path(file.path).expanduser()])
    folder = Path(resolve(model))
    if not folder.is_dir():  # a hub id: find the folder in the hub's own cache
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(model, "config.json")
        if not isinstance(config, str):
            return f"no files of {model}"
        folder = Path(config).parent
    return _of_folder(folder)


def _of_folder(folder: Path) -> str:
    digest = sha256((folder / "config.json").read_bytes())
    return _of_files(digest, sorted(folder.glob("*.safetensors")))


def _of_files(digest: Any, files: Sequence[Path]) -> str:
    """The digest of a file's size, its beginning, and samples of the rest, for each of the files."""
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

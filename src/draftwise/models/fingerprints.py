"""What tells one model from another, without reading all of it: is a saved number about these models?"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import registry
from ..core.roles import Drafter
from .load import resolve

SAMPLES, BYTES = 64, 64  # places in a file of weights, and bytes read at each
HEADER = 1 << 20  # of a Safetensors header, which names every tensor with its shape
HEADS = ("eagle", "medusa")  # drafters whose path is a folder of weights
VALUES = 8  # of each parameter of a model in memory


def drafter_fingerprint(asked: Any) -> str:
    """A drafter's fingerprint: a lookup is known by its name and options, a model or a head by its weights.

    `asked` is what `Decoder.from_pretrained` takes.
    """
    if isinstance(asked, str):
        spec = registry.parse(asked)
        if spec.name == "lm":
            return model_fingerprint(spec.path)
        if spec.name in HEADS:
            return f"{asked.strip()} {model_fingerprint(spec.path)}"
        known = spec.name in registry.names("drafters")
        return asked.strip() if known else model_fingerprint(asked.strip().partition("?")[0])
    if isinstance(asked, Drafter):
        return f"{type(asked).__module__}.{type(asked).__qualname__}"
    return model_fingerprint(asked)


def model_fingerprint(model: Any) -> str:
    """SHA-256 over a model's configuration, its tensors' names and shapes, and a sample of their values.

    `model` is a name or a loaded model. The same model by name and in memory has two fingerprints.
    """
    if not isinstance(model, str):
        return _of_parameters(model)
    folder = Path(resolve(model))
    if not folder.is_dir():  # a hub id: where the hub's own library has put its files
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json")
        if not isinstance(found, str):
            return f"no files of {model}"
        folder = Path(found).parent
    return _of_folder(folder)


def _of_folder(folder: Path) -> str:
    digest = sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(HEADER))
            for i in range(SAMPLES):
                file.seek(i * max(0, size - BYTES) // (SAMPLES - 1))
                digest.update(file.read(BYTES))
    return digest.hexdigest()


def _of_parameters(model: Any) -> str:
    digest = sha256(str(type(model).__qualname__).encode())
    for name, tensor in model.named_parameters():
        flat = tensor.detach().flatten()
        some = [] if tensor.is_meta else flat[:: max(1, len(flat) // VALUES)][:VALUES].float().tolist()
        digest.update(f"{name} {tuple(tensor.shape)} {some}\n".encode())
    return digest.hexdigest()

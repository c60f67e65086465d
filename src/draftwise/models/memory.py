"""How much memory a model needs, from its config.json and the headers of its weights, and how much there is.

Nothing is loaded, and no torch."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import ENOMEM
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DraftwiseWarning, UserError, one_line
from . import hub

if TYPE_CHECKING:
    import torch

# A layer of multi-token prediction that follows the model's own.
AFTER = re.compile(r"^(?:(?:.*\.)?(?:model|language_model)\.)?layers\.(\d+)\.(.+)$")
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
    """Return the footprint of the model in a folder, or of the tensors whose names are `wanted`.

    Raises:
        UserError: config.json or a weights file cannot be read.
    """
    try:
        config = read_config(folder)
        headers = map(_read_header, sorted(folder.glob("*.safetensors")))
        tensors = [t for header in headers for name, t in header.items() if wanted(name)]
    except (OSError, ValueError) as error:
        raise UserError(f"model {str(folder)!r} cannot be read ({error}): download it again") from error
    if not tensors:
        return Footprint(cache_bytes=cache_bytes(config))
    parameters = sum(prod(tensor["shape"]) for tensor in tensors)
    stored = sum(prod(tensor["shape"]) * BITS.get(tensor["dtype"], 8) // 8 for tensor in tensors)
    return Footprint(parameters, stored, cache_bytes(config))


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return the content of config.json, empty if there is none; a ValueError if it is not a JSON object."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not isinstance(config, dict):
        raise ValueError("config.json holds no settings")
    return config


def cache_bytes(config: Mapping[str, Any]) -> int | None:
    """Return the bytes of keys and values for 1,000 tokens in 16 bits; None if `config` does not tell them.

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


def _read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Shape and dtype of every tensor in a Safetensors file, by name."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > file.stat().st_size:  # of another format, or a pointer of Git LFS
            raise ValueError(f"{file.name} holds no Safetensors")
        header = json.loads(opened.read(size))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def is_mtp_tensor(name: str, depth: int) -> bool:
    """Return whether a tensor belongs to multi-token prediction, in a model of so many layers."""
    if name.endswith("inv_freq"):
        return False
    after = AFTER.match(name)
    return "mtp" in name or (after is not None and int(after[1]) >= depth)


GROUP = Path("/sys/fs/cgroup")
NO_MEMORY = re.compile(r"out of memory|(?:not enough|can't allocate|cannot allocate) memory", re.IGNORECASE)
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def warn_if_too_large(name: str, path: str, dtype: str | torch.dtype, device: torch.device) -> None:
    """Warn in one line if the weights of a model need more memory than is free.

    `dtype` is what the weights are loaded as; "auto" stands for the checkpoint's own. Nothing is said
    where the number of parameters or the free memory is unknown.
    """
    needed, free = weight_bytes(path, dtype), free_bytes(device)
    if needed is None or free is None or needed <= free:
        return
    own = " in float32" if str(dtype).endswith("float32") else ""
    remedy = "take a smaller model" + (f", or dtype=bfloat16 ({needed / 2e9:.1f} GB)" if own else "")
    warnings.warn(
        f"model {name!r} needs {needed / 1e9:.1f} GB{own}, and {free / 1e9:.1f} GB are free: {remedy}",
        DraftwiseWarning,
        stacklevel=4,  # the caller of `load_model`
    )


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that no memory is left; PyTorch has a type for that of GPUs alone."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == ENOMEM
    return isinstance(error, RuntimeError) and NO_MEMORY.search(str(error)) is not None


def out_of_memory(what: str, error: Exception) -> UserError:
    """Return the error for something that found no memory while it was loaded."""
    remedy = "free some, or take a smaller model, dtype=bfloat16 or another device"
    return UserError(f"out of memory for {what} ({one_line(error)}): {remedy}")


def weight_bytes(path: str, dtype: str | torch.dtype) -> int | None:
    """Return the bytes of a model's weights, given by folder or hub id; None if they are not known."""
    own = Path(path)
    place = own if own.is_dir() else hub.cached_folder(path)
    if place is None:
        parameters = hub.ask(path)[1]
        return parameters and parameters * SIZES.get(_dtype_name(dtype), 2)
    try:
        model = footprint(place)
    except UserError:
        return None  # loading says what is wrong
    size = SIZES.get(_dtype_name(dtype))
    return model.weight_bytes if size is None or not model.parameters else model.parameters * size


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that can be had on a device, within the limit of a control group; None if unknown."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    free = [_available(), _left_in_group()] if device.type == "cpu" else []
    return min((value for value in free if value is not None), default=None)


def _available() -> int | None:
    """The memory that programs can still get, page cache included; where it is not told, what is free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _left_in_group() -> int | None:
    try:
        most, used = ((GROUP / f"memory.{key}").read_text().strip() for key in ("max", "current"))
        return int(most) - int(used)
    except (OSError, ValueError):  # no limit is the word max
        return None


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")

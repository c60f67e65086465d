"""Warns before a model is loaded that does not fit into memory. Loads no torch by itself."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DraftwiseWarning, UserError
from . import hub
from .footprint import footprint

if TYPE_CHECKING:
    import torch

GROUP = Path("/sys/fs/cgroup")
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


def weight_bytes(path: str, dtype: str | torch.dtype) -> int | None:
    """Return the bytes of a model's weights, given by folder or hub id; None if they are not known."""
    place = Path(path)
    if not place.is_dir():
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(path, "config.json")
        if not isinstance(config, str):
            parameters = hub.ask(path)[1]
            return parameters and parameters * SIZES.get(_word(dtype), 2)
        place = Path(config).parent
    try:
        found = footprint(place)
    except UserError:
        return None  # loading says what is wrong
    size = SIZES.get(_word(dtype))
    return found.weight_bytes if size is None or not found.parameters else found.parameters * size


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


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")

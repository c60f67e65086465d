"""The settings that a training takes from its machine: precision and number of threads.

Both affect the last bits of every step. They are chosen when a training begins and stored in its folder, so a
resumed run is exact whatever the machine's settings are then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..errors import UserError
from .settings import Training

T = TypeVar("T", bound=Training)
Capable = Callable[[str], bool]


def fast_in_half(device: str) -> bool:
    """Whether bfloat16 is faster on this machine's `cpu` or `cuda`: a GPU with support, a CPU with AMX."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # recent versions of PyTorch
    return bool(known.get("amx_bf16"))


def in_half(run: Training, capable: Capable = fast_in_half) -> bool:
    """Whether matrix products are in bfloat16: if requested, or if the device is `capable` of it."""
    if run.precision != "auto":
        return run.precision == "bfloat16"
    return capable("cpu" if on_cpu(run) else "cuda")


def on_cpu(run: Training) -> bool:
    """Whether training runs without a GPU."""
    return run.device == "cpu" or not torch.cuda.is_available()


@contextmanager
def settled(run: T, file: Path, capable: Capable = fast_in_half) -> Iterator[T]:
    """The run with its precision chosen, and its initial number of threads set; both are stored in `file`.

    Raises:
        UserError: the file is damaged.
    """
    if not file.exists():
        chosen = {"precision": "bfloat16" if in_half(run, capable) else "float32"}
        part = file.with_name(f"{file.name}.part")
        part.write_text(json.dumps(chosen | {"threads": torch.get_num_threads()}))
        part.replace(file)
    try:
        began = json.loads(file.read_text())
        run, threads = replace(run, precision=began["precision"]), int(began["threads"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{file} is damaged, and says no longer how this training began: give a new folder as --out"
        ) from error
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield run
    finally:
        torch.set_num_threads(before)

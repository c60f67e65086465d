"""What a training takes from its machine: the precision of its products, and its threads.

Both decide the last bits of every step. They are chosen when a training begins and kept in its folder, so
that it goes on exactly, with whatever settings it is started again.
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
    """Whether bfloat16 helps on this machine's `cpu` or `cuda`: a GPU that knows it, a CPU with AMX."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # late versions of PyTorch
    return bool(known.get("amx_bf16"))


def in_half(run: Training, capable: Capable = fast_in_half) -> bool:
    """Whether products are in bfloat16: where it is asked for, or where the device is `capable` of it."""
    if run.precision != "auto":
        return run.precision == "bfloat16"
    return capable("cpu" if on_cpu(run) else "cuda")


def on_cpu(run: Training) -> bool:
    """Whether it trains without a GPU."""
    return run.device == "cpu" or not torch.cuda.is_available()


@contextmanager
def settled(run: T, file: Path, capable: Capable = fast_in_half) -> Iterator[T]:
    """The run with its precision chosen, under the threads it began with; both are kept in `file`.

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

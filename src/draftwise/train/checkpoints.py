"""Checkpoints of a training: folders of Safetensors and JSON, written atomically.

    checkpoints/step-000100/weights.safetensors     the trained parameters, by name
                            optimizer.safetensors   NAME.KEY for every tensor that AdamW keeps of a parameter
                            state.json              steps done and the log so far

This is enough to resume exactly: the learning rate, the order of the data and every random number follow from
the seed and the number of the step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import UserError

WHOLE = re.compile(r"step-(\d{6,})")


def save(folder: Path, step: int, model: nn.Module, optimizer: Any, log: list[dict[str, Any]]) -> None:
    """Write the checkpoint after `step` steps, then delete the previous one."""
    part = folder / f"step-{step:06}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    named = trained(model)
    _write(part / "weights.safetensors", {name: p.detach() for name, p in named.items()})
    kept = {
        f"{name}.{key}": value
        for name, p in named.items()
        for key, value in optimizer.state.get(p, {}).items()
    }
    _write(part / "optimizer.safetensors", kept)
    (part / "state.json").write_text(json.dumps({"step": step, "log": log}))
    for file in part.iterdir():
        _sync(file)
    part.rename(folder / f"step-{step:06}")
    for older in _found(folder)[:-1]:
        older.rename(older.with_name(f"{older.name}.part"))  # half a folder must never look complete
    for gone in folder.glob("*.part"):
        shutil.rmtree(gone)


def restore(folder: Path, model: nn.Module, optimizer: Any) -> tuple[int, list[dict[str, Any]]]:
    """Restore the latest checkpoint; returns the steps done (0 without a checkpoint) and the log.

    Raises:
        UserError: it is damaged, or of another model.
    """
    for gone in folder.glob("*.part"):  # left by a run killed while saving
        shutil.rmtree(gone)
    found = _found(folder)
    if not found:
        return 0, []
    latest = found[-1]
    try:
        state = json.loads((latest / "state.json").read_text())
        weights, kept = (load_file(latest / f"{name}.safetensors") for name in ("weights", "optimizer"))
        named = trained(model)
        if weights.keys() != named.keys():
            raise ValueError("it holds other parameters")
        with torch.no_grad():
            for name, p in named.items():
                p.copy_(weights[name])
        parts: dict[int, dict[str, Tensor]] = {i: {} for i in range(len(named))}
        places = {name: i for i, name in enumerate(named)}
        for key, value in kept.items():
            name, _, part = key.rpartition(".")
            parts[places[name]][part] = value
        optimizer.load_state_dict(optimizer.state_dict() | {"state": parts})
        return int(state["step"]), list(state["log"])
    except Exception as error:  # whatever is wrong with a damaged file, the remedy is the same
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"cannot continue from {latest}: {said}; remove that folder to start again"
        ) from error


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if WHOLE.fullmatch(path.name))


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())

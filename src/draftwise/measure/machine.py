"""The machine that measured, and how much of it others were using meanwhile."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..models.threads import Meter, cores, load_average

__all__ = ["Meter", "cores", "describe", "load_average", "run"]

PACKAGES = ("draftwise", "torch", "transformers", "numpy", "scikit-learn", "llama-cpp-python", "vllm")


def describe() -> dict[str, Any]:
    """Processor, cores, threads and memory, GPU, system, and the versions of what ran."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else ""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "threads": torch.get_num_threads() if torch is not None else None,
        "memory_gb": _memory(),
        "gpu": gpu,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def run() -> dict[str, str]:
    """The date of this run, with its time zone, and the command line that started it."""
    program, *options = sys.argv
    path = Path(program)
    name = f"python -m {path.parent.name}" if path.name == "__main__.py" else path.name
    now = datetime.now().astimezone().isoformat(" ", "minutes")
    return {"date": now, "command": " ".join([name, *map(shlex.quote, options)])}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""

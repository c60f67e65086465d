"""The machine that measured, and how much of it others were using meanwhile."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> float | None:
    """The one-minute load average; None where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


@dataclass(slots=True)
class Meter:
    """Reads, from sample to sample, how many cores others kept busy: all busy time less our own.

    `children` are processes of ours that are still running. Needs /proc; elsewhere `others` is the load
    average less one's own threads, which knows the last minute only.
    """

    children: set[int] = field(default_factory=set)
    busy: float = 0.0
    own: float = 0.0
    at: float = 0.0

    def __post_init__(self) -> None:
        self.busy, self.own, self.at = _busy(), self._own(), time.monotonic()

    def sample(self) -> dict[str, float | None]:
        """Load and others' cores since the last sample, and over how many seconds."""
        busy, own, at = _busy(), self._own(), time.monotonic()
        seconds = max(at - self.at, 1e-9)
        load = load_average()
        others: float | None = max(0.0, (busy - self.busy) - (own - self.own)) / seconds
        if busy != busy:  # NaN: no /proc
            others = None if load is None else max(0.0, load - cores())
        self.busy, self.own, self.at = busy, own, at
        return {
            "load": load,
            "others": None if others is None else round(others, 3),
            "over": round(seconds, 3),
        }

    def _own(self) -> float:
        mine = os.times()
        return mine.user + mine.system + sum(map(_used, self.children))


def _busy() -> float:
    """Seconds that our cores together were busy or stolen since boot; NaN where there is no /proc/stat."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return float("nan")
    ours = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    ticks = 0
    for line in lines:
        name, *parts = line.split()
        if name in ours:
            user, nice, system, _, _, irq, soft, steal = (int(x) for x in parts[:8])
            ticks += user + nice + system + irq + soft + steal  # user and nice count the guests too
    return ticks / os.sysconf("SC_CLK_TCK")


def _used(process: int) -> float:
    """Processor seconds of a running process; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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

"""The machine that measured, how much of it others were using meanwhile, and if it was quiet."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from ..errors import pluralize
from ..models.threads import Meter, cores, load_average

__all__ = ["Meter", "Stops", "cores", "describe", "judge", "llamacpp_features", "load_average"]
__all__ += ["run", "split_load", "used_by_others"]

PACKAGES = ("draftwise", "torch", "transformers", "numpy", "scikit-learn", "llama-cpp-python", "vllm")
START = 0.25  # load average per core at the start, above which the machine was busy
MEAN = 0.05  # cores per core that others may use on average
PEAK = 0.25  # and over any one sample of at least
LONG = 1.0  # seconds, since a shorter one has too few ticks of the clock


class Stops:
    """Counts how often this process continued after it was stopped, as by Ctrl-Z, within a `with` statement.

    What is timed over a stop has the pause in it. Counts in the main thread, where the system has such stops.
    """

    count = 0

    def __enter__(self) -> Stops:
        self._can_count = hasattr(signal, "SIGCONT") and current_thread() is main_thread()
        if self._can_count:
            self._before = signal.signal(signal.SIGCONT, self._add)
        return self

    def __exit__(self, *error: object) -> None:
        if self._can_count:
            signal.signal(signal.SIGCONT, self._before)

    def _add(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def describe() -> dict[str, Any]:
    """Return processor, cores, threads and memory, GPU, system, and the versions of what ran."""
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
        "versions": {name: number for name in PACKAGES if (number := _version(name))},
    }


def llamacpp_features(info: str) -> list[str]:
    """Return what llama.cpp can use, from its own line such as `CPU : SSE3 = 1 | AMX_INT8 = 0 | `."""
    pairs = (part.rpartition(":")[2].partition("=") for part in info.split("|"))
    return [name.strip() for name, _, there in pairs if there.strip() not in ("", "0")]


def run() -> dict[str, str]:
    """Return the date of this run, with its time zone, and the command line that started it."""
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


def judge(
    starts: Sequence[float | None], samples: Sequence[Mapping[str, Any]], machine_cores: int
) -> list[str]:
    """Return why a run is not clean, one line a reason; none if the machine was quiet.

    `starts` are the load averages that the run, and each time it continued, began with.
    """
    reasons, whole = [], pluralize(machine_cores, "core")
    if not starts or None in starts:
        reasons.append("this system tells no load average")
    worst = max((load for load in starts if load is not None), default=0.0)
    if worst > START * machine_cores:
        reasons.append(f"load {worst:.2f} on {whole} at the start")
    used = used_by_others(samples)
    if used is None:
        return [*reasons, "the load during the run was not measured"]
    mean, peak = used
    if mean > MEAN * machine_cores:
        reasons.append(f"others used {mean:.2f} of {whole} on average")
    elif peak > PEAK * machine_cores:
        reasons.append(f"others used up to {peak:.2f} of {whole}")
    return reasons


def used_by_others(samples: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return the cores that others used: on average over the time, and at most over any long sample.

    None where it was not measured.
    """
    pairs = [(s["others"], s["over"]) for s in samples if s.get("others") is not None and s.get("over")]
    if not pairs:
        return None
    mean = sum(others * over for others, over in pairs) / sum(over for _, over in pairs)
    return mean, max((others for others, over in pairs if over >= LONG), default=mean)


def split_load(load: Sequence[Mapping[str, Any]]) -> tuple[list[float | None], list[Mapping[str, Any]]]:
    """Split a load as files have it into the averages at each start, and the samples during the run."""
    return [s["start"] for s in load if "start" in s], [s for s in load if "start" not in s]

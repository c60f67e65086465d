"""How much of this machine's cores others use. Standard library only."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """The cores of ours that share no execution units with another one; all of them if that is not known."""
    try:
        blocks = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return cores()
    ours, found = os.sched_getaffinity(0), set[tuple[str, str]]()
    for block in blocks:
        pairs = (line.partition(":") for line in block.split("\n"))
        facts = {key.strip(): value.strip() for key, _, value in pairs}
        if int(facts.get("processor", -1)) in ours and "core id" in facts:
            found.add((facts.get("physical id", ""), facts["core id"]))
    return len(found) or cores()


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


def own_time() -> tuple[float, float]:
    """Seconds that our threads have had a core, and that they have waited for one; NaN if that is not known.

    Those of threads that have ended are missing.
    """
    mine, waited = os.times(), 0.0
    try:
        for thread in os.scandir("/proc/self/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                waited += int(Path(thread.path, "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        waited = nan
    return mine.user + mine.system, waited


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

"""How many cores others use, how many threads PyTorch computes with on a CPU, and which thread has OpenMP's.

OpenMP's threads wait for each other awake. While one of them has lost its core to another process, the
others wait with theirs: beside two busy processes on two cores, two threads are several times slower than
one, and on a quiet machine twice as fast. So their number follows what others use.

Importing this module loads no torch.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from logging import INFO, WARNING, getLogger
from math import ceil, inf, nan
from pathlib import Path
from typing import Any


def cores() -> int:
    """How many cores' worth of time we may use: a container's quota may be less than its cores."""
    own = _own_cores()
    return min(own, quota() or own)


def free_cores(others: float) -> float:
    """How many cores are left to us; what others use of cores beyond our quota takes nothing from us."""
    return min(cores(), _own_cores() - others)


def quota(root: Path = Path("/")) -> int | None:
    """Return the cores' worth of time that control groups allow this process, rounded up; None for no limit.

    Read from version 2 (cpu.max) and version 1 (cpu.cfs_quota_us), of the group and those above it.
    """
    limits = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            place = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
            for path in (Path(group), *Path(group).parents):
                limits.append(_limit(place / str(path).lstrip("/")))
    return min((ceil(limit) for limit in limits if limit), default=None)


def _limit(group: Path) -> float | None:
    """The cores that one control group allows; None without a limit or a file that tells."""
    with suppress(OSError, ValueError):  # ValueError: "max", which is no limit
        if (group / "cpu.max").exists():
            share, period = map(int, (group / "cpu.max").read_text().split())
        else:
            share, period = (int((group / f"cpu.cfs_{x}_us").read_text()) for x in ("quota", "period"))
        return share / period if share > 0 < period else None
    return None


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """The cores of ours that share no execution units with another one; all of them if that is not known."""
    try:
        blocks = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return _own_cores()
    own_cores, pairs_of_ids = os.sched_getaffinity(0), set[tuple[str, str]]()
    for block in blocks:
        pairs = (line.partition(":") for line in block.split("\n"))
        facts = {key.strip(): value.strip() for key, _, value in pairs}
        if int(facts.get("processor", -1)) in own_cores and "core id" in facts:
            pairs_of_ids.add((facts.get("physical id", ""), facts["core id"]))
    return len(pairs_of_ids) or _own_cores()


def load_average() -> float | None:
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
            others = None if load is None else max(0.0, load - _own_cores())
        self.busy, self.own, self.at = busy, own, at
        return {
            "load": load,
            "others": None if others is None else round(others, 3),
            "over": round(seconds, 3),
        }

    def _own(self) -> float:
        times = os.times()
        return times.user + times.system + sum(map(_used, self.children))


def own_time() -> tuple[float, float]:
    """Seconds that our threads have had a core, and that they have waited for one; NaN if that is not known.

    Those of threads that have ended are missing.
    """
    times, waited = os.times(), 0.0
    try:
        for thread in os.scandir("/proc/self/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                waited += int(Path(thread.path, "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        waited = nan
    return times.user + times.system, waited


def _busy() -> float:
    """Seconds that our cores together were busy or stolen since boot; NaN where there is no /proc/stat."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return float("nan")
    own_cores = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    ticks = 0
    for line in lines:
        name, *parts = line.split()
        if name in own_cores:
            user, nice, system, _, _, irq, soft, steal = (int(x) for x in parts[:8])
            ticks += user + nice + system + irq + soft + steal  # user and nice count the guests too
    return ticks / os.sysconf("SC_CLK_TCK")


def _used(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


LOG = getLogger(__name__)
SOFT = 1  # omp_pause_soft: what was set, such as the number of threads, stays
EVERY = 0.5  # seconds between two looks at what others use
SHORTEST = 0.2  # seconds of a look: the system counts in hundredths
LONGEST = 5.0  # seconds after which a look says little about now, and the next one follows soon
LOSING, GAINING = (
    0.5,
    0.3,
)  # how much of a thread's core others may use before it is given up, and taken again
ALL = 0.75  # of our threads' time, from which on all of them compute or wait for a core
HELD_UP = 0.15  # cores that our threads wait for, above which others are in our way
ATTEMPTS = 8.0, 64.0  # seconds until all threads are tried again beside others: the first time, and at most
FIXED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # a user's own number, which stays


def fitting(now: int, most: int, free: float) -> int:
    """The number of threads for `free` cores, 1 to `most`; it stays `now` unless another is clearly right."""
    fewer, more = (max(1, min(most, int(free + share))) for share in (LOSING, GAINING))
    return fewer if fewer < now else max(now, more)


class Threads:
    """Chooses the number of threads by what others use of our cores, again every half second.

    Others are not in the way if our threads hardly wait for a core, as beside work of low priority. With
    fewer threads that cannot be seen, so all are tried again now and then, after each failure half as often.

    PyTorch has a number for each calling thread: `apply` sets it there, `restore` takes it back. A number
    that is not PyTorch's default, or that the environment gives, is the user's and stays.
    """

    def __init__(self, meter: Meter | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.meter, self.clock = meter or Meter(), clock
        self.given = self.wanted = 0  # before the first look
        self.kept = False
        self.others: float | None = None  # cores, at the latest look
        self._due, self._told = 0.0, False
        self._used, self._waited = own_time()
        self._patience, self._attempt = ATTEMPTS[0], inf

    @property
    def busy(self) -> bool:
        return self.others is not None and self.others > GAINING

    @property
    def most(self) -> int:
        """The most threads to try: PyTorch's default knows no quota."""
        return min(self.given, cores())

    def pending(self) -> bool:
        """Whether the calling thread has another number than there is room for."""
        import torch

        now = torch.get_num_threads()
        if now not in (self.given, self.wanted):
            self.given = self.wanted = now
            self.kept = now == 1 or any(map(os.environ.get, FIXED)) or now not in _defaults()
            if not self.kept:
                self.wanted = self.most
        if self.clock() >= self._due:
            self._look()
        return now != self.wanted

    def apply(self) -> None:
        import torch

        torch.set_num_threads(self.wanted)

    def restore(self) -> None:
        """Give the calling thread the number back that it had."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and not self.kept and torch.get_num_threads() == self.wanted != self.given:
            torch.set_num_threads(self.given)

    def adapt(self) -> None:
        """Apply what fits now: for a caller between two texts."""
        if self.pending():
            self.apply()

    def keep(self, number: int = 0) -> None:
        """Choose once, or as in an earlier part of the work, and keep it: what is compared has one number."""
        time.sleep(max(0.0, self.meter.at + SHORTEST - self.clock()))
        self.pending()
        if not self.kept and 0 < number <= self.given:
            self.wanted = number
        self.apply()
        self.kept = True

    def _look(self) -> None:
        now, window = self.clock(), self.clock() - self.meter.at
        if window < SHORTEST:
            return
        self._due = now + (EVERY if window < LONGEST else SHORTEST)
        self.others = self.meter.sample()["others"]
        held_up = self._held_up(window)
        if self.others is None or self.kept:
            return
        fits = fitting(self.wanted, self.most, free_cores(self.others))
        if fits > self.wanted:
            self._patience, self._attempt = ATTEMPTS[0], inf
        elif fits < self.wanted:
            if not held_up:
                return
            self._attempt, self._patience = now + self._patience, min(2 * self._patience, ATTEMPTS[1])
        elif now >= self._attempt:
            fits, self._due, self._attempt = self.most, now + SHORTEST, inf
        before, self.wanted = self.wanted, fits
        if before != fits:
            self._tell()

    def _held_up(self, window: float) -> bool:
        """Whether our threads waited for cores; True if they did not all compute in this window."""
        (used, waited), before = own_time(), (self._used, self._waited)
        self._used, self._waited = used, waited
        used, waited = (used - before[0]) / window, (waited - before[1]) / window
        return not (used + waited >= ALL * self.wanted and waited < HELD_UP)

    def _tell(self) -> None:
        LOG.log(
            INFO if self._told else WARNING,
            "others use %.1f of %d cores: models run in %d of %d threads as long as that is so; "
            "OMP_NUM_THREADS=%d fixes their number",
            *(self.others, cores(), self.wanted, self.given, self.given),
        )
        self._told = True


@cache
def _defaults() -> tuple[int, int]:
    return _own_cores(), physical_cores()


THREADS = Threads()


def fix_threads(number: int) -> None:
    """Compute with this number of threads from now on, in this process, whatever others do."""
    import torch

    os.environ[FIXED[0]] = str(number)
    torch.set_num_threads(number)


def release() -> None:
    """Give the calling thread its number of threads back, and let go of its OpenMP threads.

    When it computes again, it gets new ones. While one thread has them, those of another thread must sleep
    between two steps of a computation instead of waiting awake, since there would be more threads than cores.
    So a model that one thread loads and another runs, as in a server, is up to 2.6 times slower. New
    threads take 0.1 to 0.8 ms. Where OpenMP has no such function only the number is restored.
    """
    THREADS.restore()
    if (pause := _pause()) is not None:
        pause(SOFT)


def _pause() -> Any:
    """OpenMP 5.0's `omp_pause_resource_all`; None where there is none in this process, or not yet."""
    try:
        return ctypes.CDLL(None).omp_pause_resource_all
    except (AttributeError, OSError, TypeError):  # no symbol; no such handle on Windows
        return None

"""Whether a machine was quiet while something was measured. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

START = 0.25  # load average per core at the start, above which the machine was busy
MEAN = 0.05  # cores per core that others may use on average
PEAK = 0.25  # and over any one sample of at least
LONG = 1.0  # seconds, since a shorter one has too few ticks of the clock


def judge(
    starts: Sequence[float | None], samples: Sequence[Mapping[str, Any]], machine_cores: int
) -> list[str]:
    """Why a run is not clean, one line a reason; none if the machine was quiet.

    `starts` are the load averages that the run, and each time it continued, began with.
    """
    reasons = []
    if not starts or None in starts:
        reasons.append("this system tells no load average")
    worst = max((load for load in starts if load is not None), default=0.0)
    if worst > START * machine_cores:
        reasons.append(f"load {worst:.2f} on {machine_cores} cores at the start")
    used = used_by_others(samples)
    if used is None:
        return [*reasons, "the load during the run was not measured"]
    mean, peak = used
    if mean > MEAN * machine_cores:
        reasons.append(f"others used {mean:.2f} of {machine_cores} cores on average")
    elif peak > PEAK * machine_cores:
        reasons.append(f"others used up to {peak:.2f} of {machine_cores} cores")
    return reasons


def used_by_others(samples: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The cores that others used: on average over the time, and at most over any long sample; None where
    it was not measured."""
    known = [(s["others"], s["over"]) for s in samples if s.get("others") is not None and s.get("over")]
    if not known:
        return None
    mean = sum(others * over for others, over in known) / sum(over for _, over in known)
    return mean, max((others for others, over in known if over >= LONG), default=mean)


def split(load: Sequence[Mapping[str, Any]]) -> tuple[list[float | None], list[Mapping[str, Any]]]:
    """The load averages at each start, and the samples taken during the run, of one list as files have it."""
    return [s["start"] for s in load if "start" in s], [s for s in load if "start" not in s]

"""What the studies that replay traces share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftwise.measure.trace import Costs, Replay, read_costs
from draftwise.measure.trace.state import ReplayState


def costs_of(folder: Path, name: str) -> Costs:
    """A table of costs by its name; `measured` is that of the trace in the folder."""
    return read_costs(str(folder / "costs.json") if name == "measured" else name)


def seconds(replay: Replay, states: Sequence[ReplayState]) -> list[float]:
    """The seconds of each text, played one after the other."""
    return [sum(round.seconds.total for round in replay.replay(state)) for state in states]

"""Record the target's text and all drafters' guesses once; then replay any policy on them, exactly."""

from __future__ import annotations

from .costs import Costs, DrafterCosts, profiles, read_costs
from .files import Header, RecordedDrafts, Recording, Trace
from .replay import Replay, replay
from .state import ReplayState

__all__ = [
    "Costs",
    "DrafterCosts",
    "Header",
    "RecordedDrafts",
    "Recording",
    "Replay",
    "ReplayState",
    "Trace",
    "profiles",
    "read_costs",
    "replay",
]

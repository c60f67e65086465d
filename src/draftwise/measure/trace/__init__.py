"""Record once what the target writes and all drafters guess; then replay every policy on it, exactly."""

from __future__ import annotations

from .costs import Costs, DrafterCosts, profiles, read_costs
from .files import Answers, Header, Recording, Trace
from .replay import Replay, replay

__all__ = [
    "Answers",
    "Costs",
    "DrafterCosts",
    "Header",
    "Recording",
    "Replay",
    "Trace",
    "profiles",
    "read_costs",
    "replay",
]

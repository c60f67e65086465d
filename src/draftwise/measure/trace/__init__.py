"""Record the target's text and all drafters' guesses once; then replay any policy on them, exactly."""

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

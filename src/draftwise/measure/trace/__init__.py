"""Record the target's text and all drafters' guesses once; then replay any policy on them, exactly."""

from __future__ import annotations

from .costs import Costs, DrafterCosts, profiles, read_costs
from .files import Trace
from .replay import Replay
from .state import ReplayState

__all__ = ["Costs", "DrafterCosts", "Replay", "ReplayState", "Trace", "profiles", "read_costs"]

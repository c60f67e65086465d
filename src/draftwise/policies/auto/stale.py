"""Costs that hold no longer: passes run in another way, or a file brought those of another machine."""

from __future__ import annotations

from typing import Protocol

from .drafting import DraftCost
from .pace import Pacing
from .parts import Guarding
from .passes import Load, PassCost

SAME = 1.5  # passes whose seconds differ by more than this factor are of two machines


class Costed(Protocol):
    """A policy that knows what passes and drafts cost."""

    pass_costs: list[PassCost]
    draft_costs: list[DraftCost]
    pace: Pacing
    guard: Guarding
    load: Load
    compiled: bool
    doubted: bool


def check(policy: Costed, target: float, usual: float) -> None:
    """Forget all costs that a file brought if the first known pass takes another time, whichever way."""
    if policy.doubted and usual:
        policy.doubted = False
        if not usual / SAME < target < usual * SAME:
            policy.pass_costs = [PassCost() for _ in policy.pass_costs]
            policy.draft_costs = [DraftCost() for _ in policy.draft_costs]
            policy.pace = type(policy.pace)()


def switch(policy: Costed, compiled: bool) -> None:
    """Passes are compiled from now on, or no longer: costs known for the other way are kept apart."""
    policy.compiled, policy.load.factor = compiled, 1.0
    policy.pace, policy.guard = type(policy.pace)(), type(policy.guard)()

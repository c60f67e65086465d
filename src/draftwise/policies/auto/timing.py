"""What `auto` learns of the seconds of a round, and when they hold no longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ...core.outcomes import RoundCost
from .drafting import DraftCost
from .pace import Pacing
from .parts import Guarding
from .passes import Load, PassCost, size_class
from .worth import Worth

SAME = 1.5  # passes whose seconds differ by more than this factor are of two machines
BRIEF = 6e-3  # seconds of a pass, below which deciding takes a share of the time that counts
KNOWN = 256.0  # passes from which what they cost is known
OFTEN = 32.0  # calls from which what a draft costs is known
SELDOM = 4  # brief rounds of which one is timed


class Costed(Protocol):
    """A policy that knows what passes and drafts cost."""

    pass_costs: list[PassCost]
    draft_costs: list[DraftCost]
    cascades: Mapping[int, int]
    pace: Pacing
    guard: Guarding
    load: Load
    owed: float
    compiled: bool
    padded: bool
    rereads: bool
    doubted: bool
    turn: int

    @property
    def passes(self) -> list[PassCost]: ...

    def pass_cost(self, batch: int) -> PassCost: ...

    def drafting(self, i: int) -> DraftCost: ...


def is_timed(policy: Costed, best: Worth | None) -> bool:
    """Whether the seconds of this round are learned: of brief ones whose costs are known, of one in four."""
    policy.turn += 1
    passes = policy.passes[0]
    known = passes.passes > KNOWN and passes(1) < BRIEF and not (policy.owed or policy.doubted)
    if known and best is not None:
        drafting = policy.drafting(policy.cascades.get(best.drafter, best.drafter))
        known = drafting.calls[0].readings > OFTEN
    return not known or policy.turn % SELDOM == 0


def learn_pass(policy: Costed, spent: RoundCost, tokens: int) -> bool:
    """Learn what a pass of so many tokens costs.

    Returns whether it was a plain one that also read again what a rejection took back.
    """
    n = spent.requests
    if n > 1:
        policy.padded = spent.width > 0
    if spent.compiled != policy.compiled:
        _switch(policy, spent.compiled)
    _check(policy, spent.target, policy.pass_cost(n).usual(tokens))
    passes, target, drafts = policy.passes[size_class(n)], spent.target, tokens > n
    late = spent.again > 0 and not drafts
    policy.rereads |= spent.again > 0
    if late:  # the draft owes the longer time
        policy.owed += max(0.0, target - policy.load.factor * passes(n)) if passes.known else 0.0
        return True
    if drafts and policy.owed:
        target, policy.owed = target + policy.owed, 0.0
    else:
        policy.load.add(target, passes.usual(tokens), requests=n)
    passes.add(tokens, target / policy.load.factor, requests=n, padded=spent.width > 0)
    return False


def _check(policy: Costed, target: float, usual: float) -> None:
    """Forget all costs that a file brought if the first known pass takes another time, whichever way."""
    if policy.doubted and usual:
        policy.doubted = False
        if not usual / SAME < target < usual * SAME:
            policy.pass_costs = [PassCost() for _ in policy.pass_costs]
            policy.draft_costs = [DraftCost() for _ in policy.draft_costs]
            policy.pace = type(policy.pace)()


def _switch(policy: Costed, compiled: bool) -> None:
    """Passes are compiled from now on, or no longer: costs known for the other way are kept apart."""
    policy.compiled, policy.load.factor = compiled, 1.0
    policy.pace, policy.guard = type(policy.pace)(), type(policy.guard)()

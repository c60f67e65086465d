"""What `auto` knows of its arms, for displays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import isfinite

from ...core.roles import Values
from .candidates import LENGTHS, match_length
from .costs import DraftCost, PassCost
from .state import AutoState

UNIT = "tokens gained a round"
NO_REQUEST = -1  # has no counts of its own
PLACE_NAMES = ("without a match", "with a match")
MATCH_NAMES = ("none", "1", "2", "3", "4", "5 to 8", "9 to 16", "over 16")  # of `MATCHES`


def values(policy: AutoState, batch: int) -> Values:
    """Gain and additional seconds of each arm, on average over the contexts its drafter was tested in."""
    passes = policy.pass_cost(batch)
    rates = [policy.price(batch, matched) for matched in (False, True)]
    tables = [_Gains(policy, i, rates) for i in range(len(policy.drafters))]
    number = {name: i for i, name in enumerate(policy.drafters)}
    gains: list[float | None] = []
    seconds: list[float | None] = []
    for arm in policy.arms:
        if not arm.length:
            gains.append(0.0)
            seconds.append(0.0)
            continue
        i = number[arm.drafter]
        spent = _seconds(policy.draft_cost(i), passes, batch, arm.length)
        gains.append(tables[i].gain(arm.length, spent) if spent is not None else None)
        seconds.append(spent)
    price = {place: rate for place, rate in zip(PLACE_NAMES, rates, strict=True) if rate > 0.0}
    plain = policy.load.factor * passes(batch) or None
    return Values(UNIT, tuple(gains), tuple(seconds), price, plain, _matches(policy))


def _seconds(cost: DraftCost, passes: PassCost, batch: int, length: int) -> float | None:
    """Return what a draft of this length adds to a plain round; None before any was timed."""
    start, each = cost.price(batch)
    if not isfinite(start):
        return None
    table = passes.extra if passes.extra and cost.width <= 1.0 else None
    more = table or passes.table(batch, LENGTHS[-1], cost.width)
    return start + each * length + more[length]


class _Gains:
    """Expected accepted tokens and price at each context of one drafter, by how often it was tested there."""

    def __init__(self, policy: AutoState, i: int, rates: Sequence[float]) -> None:
        skill = policy.skills[i]
        self.contexts: list[tuple[float, list[float], float]] = []
        for context in range(int(policy.looks_up[i]), skill.contexts):  # without a match no lookup drafts
            if weight := skill.tested[context][0]:
                sums = [0.0, *accumulate(skill.curve(NO_REQUEST, context))]
                self.contexts.append((weight, sums, rates[context > 0]))

    def gain(self, length: int, seconds: float) -> float | None:
        """Expected accepted tokens less the price of the seconds; None if it was never tested."""
        whole = sum(weight for weight, _, _ in self.contexts)
        if not whole:
            return None
        parts = [w * (sums[min(length, len(sums) - 1)] - rate * seconds) for w, sums, rate in self.contexts]
        return sum(parts) / whole


def _matches(policy: AutoState) -> dict[str, dict[str, tuple[float, float]]]:
    """Return tokens tested and accepted by drafter and context, as far as they are remembered."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, skill in zip(policy.drafters, policy.skills, strict=True):
        known = len(MATCH_NAMES) == skill.contexts and policy.match is match_length
        labels = MATCH_NAMES if known else [f"class {c}" for c in range(skill.contexts)]
        rows = zip(labels, map(sum, skill.tested), map(sum, skill.accepted), strict=True)
        found[name] = {label: (tested, accepted) for label, tested, accepted in rows if tested}
    return found

"""What every policy needs to choose: the arms in use now, and an arm's stop rules as they stand."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import Arm, Context, Stop


def in_use(arms: Sequence[Arm], context: Context) -> Sequence[int]:
    """The arms whose drafters are in use; all of them if none is, since a draft then comes out empty."""
    if not context.unavailable:
        return range(len(arms))
    return [i for i, arm in enumerate(arms) if arm.drafter not in context.unavailable] or range(len(arms))


def stops_of(arm: Arm) -> tuple[Stop, ...]:
    """An arm's stop rules, one per draft position, the last for all later ones."""
    return arm.stop if isinstance(arm.stop, tuple) else (arm.stop,)

"""What every policy needs to choose: the arms in use now."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.arms import Arm, Context


def in_use(arms: Sequence[Arm], context: Context) -> Sequence[int]:
    """The arms whose drafters are in use; all of them if none is, since a draft then comes out empty."""
    if not context.unavailable:
        return range(len(arms))
    return [i for i, arm in enumerate(arms) if arm.drafter not in context.unavailable] or range(len(arms))

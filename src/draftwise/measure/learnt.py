"""What a policy has learned of its arms, for pictures."""

from __future__ import annotations

from typing import Any

from ..core.roles import Policy

DIGITS = 4


def learnt(policy: Policy) -> dict[str, float]:
    """The value of each arm by its name, of a policy that keeps one learner for all texts; else nothing."""
    learner: Any = getattr(policy, "shared", None) or getattr(policy, "learner", None)
    if len(policy.arms) < 2 or not hasattr(learner, "estimates"):
        return {}
    values = zip(policy.arms, learner.estimates(), strict=True)
    return {arm.name: round(float(value), DIGITS) for arm, value in values}

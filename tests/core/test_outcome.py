"""An outcome with its reward differs in nothing else."""

from __future__ import annotations

from dataclasses import fields

from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Outcome, RoundCost


def test_a_rewarded_outcome_has_every_other_field() -> None:
    whole = Outcome(
        3, 2, 5, 0.5, True, 0.0, (0.1, 0.2), (Signals(0.5, 0.3, 1.0, 0.5),), RoundCost(0.1, 0.2, 3), 2, 4, 6
    )
    rewarded = whole.rewarded(0.7)
    assert rewarded.reward == 0.7
    for field in fields(Outcome):
        assert field.name == "reward" or getattr(rewarded, field.name) == getattr(whole, field.name)
        assert getattr(whole, field.name) != field.default or field.name == "reward"

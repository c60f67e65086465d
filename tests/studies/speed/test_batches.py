"""Large batches in which drafts gain little, or all rows could change at once."""

from __future__ import annotations

import pytest

from studies.speed.batches import CHANCES, NAME, PRICES, WORLDS, speed


@pytest.mark.parametrize(
    ("kind", "chance", "share"),
    [("greedy", "0.25", 0.99), ("greedy", "in spans", 0.99), ("drawn", "0.9", 0.993)],
)
def test_32_rows_are_nearly_as_fast_as_with_the_best_fixed_length(
    monkeypatch: pytest.MonkeyPatch, kind: str, chance: str, share: float
) -> None:
    """One token each fills the pass as far as tokens are free; it gains 3 % where it is seldom right."""
    stage = WORLDS[kind](monkeypatch, {NAME: CHANCES[chance]}, PRICES["knee"], texts=5 * 32, tokens=200)
    best = speed(stage, f"static?length=1&drafter={NAME}", 32)
    assert best > 1.02 * speed(stage, "none", 32)
    assert speed(stage, "auto", 32) > share * best

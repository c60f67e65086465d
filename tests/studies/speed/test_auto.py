"""The scripts behind the pages on `auto`, small: each fails if what they say were lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftwise.measure.trace import Trace
from draftwise.measure.trace.causal import causal
from draftwise.measure.trace.losses import KINDS
from studies.common.plot import save
from studies.speed import ablation, where
from studies.theory import rate
from studies.theory.measure import doublings
from tests.measure.trace.sims import COSTS, recorded


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), n=4, length=16)


def test_a_part_that_is_missing_is_measured_against_the_whole_prompt_by_prompt(trace: Trace) -> None:
    made = ablation.variants(["ngram", "good"], ["price", "others"])
    assert list(made) == ["auto", "price", "others", "all but ngram", "all but good"]
    categories, seconds = ablation.seconds(trace, COSTS, made)
    rows = {row["part"]: row for row in ablation.rows(categories, seconds)}
    assert rows["auto"]["ratio"] == rows["auto"]["low"] == rows["auto"]["high"] == 1.0
    assert rows["price"]["ratio"] == pytest.approx(seconds["price"].sum() / seconds["auto"].sum())
    twice = np.array([1.0, 5.0, 2.0])
    assert ablation.ratio(2.0 * twice, twice) == pytest.approx((2.0, 2.0, 2.0))


def test_where_the_time_went_adds_up_in_every_category(trace: Trace, tmp_path: Path) -> None:
    found = where.places(trace, COSTS)
    assert sum(len(place.seconds) for place in found.values()) == 4
    for name, place in found.items():
        shares = [place.share(kind) for kind in KINDS]
        assert 0.0 < 1.0 - sum(shares) <= 1.0
        cells = where.line(name, place, causal(place.stages, COSTS)).split(" | ")
        assert cells[0] == f"| {name}" and len(cells) == 7 + len(KINDS)
        alone = place.best_fixed()[1]
        assert sum(alone) <= min(sum(one[other] for one in place.arms) for other in place.arms[0]) + 1e-9
    save(where.draw(found), tmp_path / "losses.svg")
    assert "wrong drafter" in (tmp_path / "losses.svg").read_text()


def test_the_loss_against_the_best_arm_does_not_grow_with_the_rounds() -> None:
    marks = doublings(6, 11)
    lost = rate.lost(rate.total, rate.CLEAR, marks, seeds=6).mean(axis=0)
    late = rate.lost(rate.total, rate.CLEAR, marks, delay=32, seeds=6).mean(axis=0)
    assert lost[-1] < 1.3 * lost[0] + 2.0 and late[-1] < 1.3 * late[0] + 2.0
    assert lost[-1] + 20.0 < late[-1] < lost[-1] + 32 * 3.5  # a late round costs what all arms differ by

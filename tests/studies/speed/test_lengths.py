"""The script of draft lengths by batch size, on a small world."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from draftwise.measure.trace import Costs, Trace
from draftwise.measure.trace.costs import DrafterCosts
from tests.measure.trace.sims import recorded


@pytest.fixture(scope="module")
def lengths() -> ModuleType:
    return importlib.import_module("studies.speed.lengths")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), names=("good",), n=12)


COSTS = Costs(passes=(2.0,), others=DrafterCosts(first=0.4, step=0.1))


def test_a_request_pays_its_share_of_a_pass(lengths: ModuleType) -> None:
    alone = lengths.shared(COSTS, "d", 1, 20.0)
    assert alone.target(5) == 2.0 and alone.of("d").draft(3) == pytest.approx(0.7)
    flat = lengths.shared(COSTS, "d", 4, 20.0)  # 4 requests of 5 tokens: just at the knee
    assert flat.target(1) == flat.target(5) == pytest.approx(0.5)
    full = lengths.shared(COSTS, "d", 40, 20.0)  # twice as many tokens as the knee, one each
    assert full.target(1) == pytest.approx(2.0 * 2 / 40)
    assert full.target(3) == pytest.approx(3 * full.target(1))
    assert full.of("d").step == pytest.approx(0.1 * 2 / 40) and full.of("d").first == pytest.approx(0.01)


def test_drafts_win_alone_and_none_wins_in_a_crowd(lengths: ModuleType, trace: Trace) -> None:
    rows = [row.split(" | ") for row in list(lengths.lines(trace, COSTS, 20.0, [1, 40], 2))[2:]]
    alone, crowd = ({"best": row[5], "rate": row[6], "accepted": row[8]} for row in rows)
    assert int(alone["best"]) > 0 and crowd["best"] == "0"
    shares = [[int(share) for share in row[-1].removesuffix(" % |").split()] for row in rows]
    assert all(95 <= sum(row) <= 105 for row in shares)
    assert shares[1][0] > shares[0][0]  # what pays is played more often
    kept, greedy = (float(crowd[name].split()[0]) for name in ("rate", "accepted"))
    assert greedy < kept  # accepted tokens never say that drafts do not pay


def test_the_table_is_printed(
    lengths: ModuleType, trace: Trace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--trace", str(trace.folder), "--costs", "c=0.1", "--batches", "1", "--orders", "1"]
    monkeypatch.setattr(sys, "argv", ["lengths", *words])
    lengths.main()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("12 texts, c=0.1") and len(shown) == 5 and shown[-1].startswith("| 1 | ")

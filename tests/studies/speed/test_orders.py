"""The comparison of `auto` with that of another checkout, over several orders of the prompts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from random import Random

import pytest

from draftwise.core.arms import Context, Decision
from studies.speed import orders
from studies.speed.without import Without
from tests.measure.trace.sims import recorded, settings

ROOT = Path(__file__).parents[3]


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_another_checkout_plays_by_its_own_library_and_its_own_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study may import what the other library does not have."""
    for name in ("src", "studies"):
        shutil.copytree(ROOT / name, tmp_path / "other" / name, ignore=shutil.ignore_patterns("__pycache__"))
    other = tmp_path / "other"
    change(other / "src/draftwise/policies/catalogue/auto.py", "team(", "renamed(")
    change(other / "studies/speed/without.py", "import team", "import renamed as team")
    trace = recorded(tmp_path / "trace", names=("good",), n=6, length=16)
    words = [str(trace.folder), "--costs", "c=0.1", "--orders", "2", "--tree", str(other)]
    monkeypatch.setattr(sys, "argv", ["orders", *words])
    orders.main()
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "| all | all | 1.0000 +- 0.0000 |" and len(shown) == 7


def tables(shown: str) -> dict[str, float]:
    """The ratio of all traces, by the part that was left out."""
    parts = shown.split("\nwithout ")[1:]
    return {one.split(",")[0]: float(one.splitlines()[-1].split("| ")[3].split()[0]) for one in parts}


def test_a_part_that_is_missing_changes_the_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded(tmp_path / "trace", names=("good",), n=6, length=16)
    words = ["orders", str(trace.folder), "--costs", "c=0.1", "--orders", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--without", "length", "--without", "guard"])
    orders.main()
    ratios = tables(capsys.readouterr().out)
    assert ratios.keys() == {"length", "guard"}
    assert ratios["length"] != 1.0 == ratios["guard"], "the guard does not act here"


def test_drafts_are_not_longer_than_those_of_the_trace_and_none_of_a_drawn_text_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[int, str]] = []
    choose = Without.choose

    def spy(self: Without, context: Context, rng: Random) -> Decision:
        decision = choose(self, context, rng)
        played.append((self.arms[decision.arm].length, decision.stops[0].rule))
        return decision

    monkeypatch.setattr(Without, "choose", spy)
    for name, temperature in (("greedy", 0.0), ("drawn", 1.0)):
        played.clear()
        sampling = settings(temperature=temperature, seed=1)
        trace = recorded(tmp_path / name, names=("good",), n=6, length=6, sampling=sampling)
        words = ["orders", str(trace.folder), "--costs", "c=0.1", "--orders", "2", "--without", "stop"]
        monkeypatch.setattr(sys, "argv", words)
        orders.main()
        assert max(length for length, _ in played) == 6
        assert any(rule == "gain" for _, rule in played) is (temperature == 0.0)
        assert (tables(capsys.readouterr().out)["stop"] == 1.0) is (temperature > 0.0)

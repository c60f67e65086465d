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


def play(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["orders", str(folder), "--costs", "c=0.1", "--orders", "2", *words])
    orders.main()


def test_another_checkout_plays_by_its_own_library_and_its_own_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study may import what the other library does not have."""
    other = tmp_path / "other"
    for name in ("src", "studies"):
        shutil.copytree(ROOT / name, other / name, ignore=shutil.ignore_patterns("__pycache__"))
    changes = {
        "src/draftwise/policies/catalogue/auto.py": ("team(", "renamed("),
        "studies/speed/without.py": ("import team", "import renamed as team"),
    }
    for file, (old, new) in changes.items():
        text = (other / file).read_text()
        assert old in text
        (other / file).write_text(text.replace(old, new))
    trace = recorded(tmp_path / "trace", names=("good",), n=6, length=16)
    play(trace.folder, monkeypatch, "--tree", str(other))
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "| all | all | 1.0000 +- 0.0000 |" and len(shown) == 7


def ratios(shown: str) -> dict[str, float]:
    """The ratio of all traces, by the part that was left out."""
    parts = shown.split("\nwithout ")[1:]
    return {one.split(",")[0]: float(one.splitlines()[-1].split("| ")[3].split()[0]) for one in parts}


def test_a_part_that_is_missing_changes_the_time_unless_it_does_not_act(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are not longer than those of the trace, and none of a drawn text stops."""
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
        parts = [word for part in ("stop", "length", "guard") for word in ("--without", part)]
        play(trace.folder, monkeypatch, *parts)
        assert max(length for length, _ in played) == 6
        assert any(rule == "gain" for _, rule in played) is (temperature == 0.0)
        found = ratios(capsys.readouterr().out)
        assert (found["stop"] == 1.0) is (temperature > 0.0)
        if not temperature:
            assert found["length"] != 1.0 == found["guard"]

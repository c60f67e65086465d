"""The comparison of `auto` with that of another checkout, over several orders of the prompts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from draftwise.errors import UserError
from studies.speed import orders
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
    auto, without = other / "src/draftwise/policies/auto", other / "studies/speed/without.py"
    change(auto / "acceptance.py", "LastToken", "Renamed")
    change(without, "Calibration, LastToken", "Calibration, Renamed as LastToken")
    trace = recorded(tmp_path / "trace", names=("good",), n=6, length=16)
    words = [str(trace.folder), "--costs", "c=0.1", "--orders", "2", "--tree", str(other)]
    monkeypatch.setattr(sys, "argv", ["orders", *words])
    orders.main()
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "| all | all | 1.0000 +- 0.0000 |" and len(shown) == 7


def test_a_part_that_is_missing_changes_the_time_and_wrong_settings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded(tmp_path / "trace", names=("good",), n=6, length=16)
    words = ["orders", str(trace.folder), "--costs", "c=0.1", "--orders", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--without", "length", "--without", "guard"])
    orders.main()
    tables = capsys.readouterr().out.split("\nwithout ")[1:]
    assert [table.split(",")[0] for table in tables] == ["length", "guard"]
    ratios = [float(table.splitlines()[-1].split("| ")[3].split()[0]) for table in tables]
    assert ratios[0] != 1.0 == ratios[1], "the guard does not act here"
    sampling = settings(temperature=1.0, seed=1)
    drawn = recorded(tmp_path / "drawn", names=("good",), n=6, length=16, sampling=sampling)
    monkeypatch.setattr(sys, "argv", ["orders", str(drawn.folder), *words[2:], "--without", "text"])
    orders.main()  # no model may stop there
    for setting in ("skill.lean", "skill.none=1"):
        monkeypatch.setattr(sys, "argv", [*words, "--with", setting])
        with pytest.raises(UserError, match=setting):
            orders.main()

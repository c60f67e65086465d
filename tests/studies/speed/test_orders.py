"""The comparison of `auto` with that of another checkout, over several orders of the prompts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from studies.speed import orders
from tests.measure.trace.sims import recorded

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
    change(auto / "last_token.py", "class LastToken", "class Renamed")
    for user in (auto / "skill.py", without):
        change(user, "import LastToken", "import Renamed as LastToken")
    trace = recorded(tmp_path / "trace", names=("good",), n=6, length=16)
    words = [str(trace.folder), "--costs", "c=0.1", "--orders", "2", "--tree", str(other)]
    monkeypatch.setattr(sys, "argv", ["orders", *words])
    orders.main()
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "| all | all | 1.0000 +- 0.0000 |" and len(shown) == 7

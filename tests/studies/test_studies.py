"""Every study can be run, names the page that its figures stand in, and that page names its command."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from studies import __main__ as listing

ROOT = Path(__file__).parents[2]
STUDIES = listing.studies()
NAMES = [study.module for study in STUDIES]


def test_whatever_starts_as_a_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    started = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for path in (ROOT / "studies").rglob("*.py")
        if "__main__" in path.read_text() and path.parent.name != "common"
    }
    assert set(NAMES) == started - {"studies"}
    listing.main()
    shown = capsys.readouterr().out
    assert all(f"python -m {study.module} " in shown and study.about in shown for study in STUDIES)


@pytest.mark.parametrize("study", STUDIES, ids=NAMES)
def test_its_page_names_its_command(study: listing.Study) -> None:
    page = (ROOT / study.page).read_text()
    assert re.search(rf"python -m {re.escape(study.module)}\b(?!\.)", re.sub(r"\s+", " ", page)), study.page


@pytest.mark.parametrize("study", STUDIES, ids=NAMES)
def test_it_says_how_to_run_it_and_runs_nothing(
    study: listing.Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = (ROOT / Path(*study.module.split("."))).is_dir()
    module = importlib.import_module(f"{study.module}.__main__" if package else study.module)
    monkeypatch.setattr(sys, "argv", ["study", "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert study.about[:25] in shown and f"Figures: {study.page}" in shown


def test_one_command_runs_any_of_them() -> None:
    asked = [sys.executable, "-m", "studies.theory.rate", "--help"]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("usage: python -m studies.theory.rate ")


def test_no_study_changes_where_python_looks() -> None:
    for path in (ROOT / "studies").rglob("*.py"):
        assert not re.search(r"sys\.path|noqa: E402", path.read_text()), path

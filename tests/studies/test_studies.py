"""Every study can be run, names the page that its figures stand in, and pages name it with options it has."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from studies import __main__ as listing

ROOT = Path(__file__).parents[2]
STUDIES = listing.studies()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_whatever_starts_as_a_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    started = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "studies").rglob("*.py")
        if "__main__" in path.read_text() and path.parent.name != "common"
    }
    assert {study.module for study in STUDIES} == started - {"studies.__main__"}
    listing.main()
    shown = capsys.readouterr().out
    assert all(f"python -m {study.module} " in shown and study.about in shown for study in STUDIES)


def test_pages_name_no_other_study() -> None:
    """But for those that are marked as gone."""
    named = {
        module
        for page in PAGES
        for module in re.findall(r"`python\s-m\s(studies\.[\w.]+)[^`]*`(?!†)", page.read_text())
    }
    assert named <= {study.module for study in STUDIES}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.module)
def test_it_says_how_to_run_it_as_its_page_does(
    study: listing.Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(study.module).main()
    shown = capsys.readouterr().out
    assert not ended.value.code and study.about[:25] in shown and f"Figures: {study.page}" in shown
    command = rf"`python\s-m\s{re.escape(study.module)}\b(?!\.)([^`]*)`"
    named = {page: re.findall(command, page.read_text()) for page in PAGES}
    assert named[ROOT / study.page]
    for option in re.findall(r"--[a-z][a-z-]+", " ".join(rest for uses in named.values() for rest in uses)):
        assert re.search(rf"{option}\b", shown), option

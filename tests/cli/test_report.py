"""`draftwise report` on a made-up folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.report import folder as made

from .conftest import Result

Run = Callable[..., Result]


def results(folder: Path, workload: str = "mixed") -> str:
    """A folder with `results.json` alone, which is soon drawn."""
    for path in made.write(folder, workload).glob("*.jsonl"):
        path.unlink()
    return str(folder)


def test_report_writes_the_page_and_says_where(run: Run, tmp_path: Path) -> None:
    here = results(tmp_path / "run")
    status, out, err = run("report", here)
    assert (status, out.strip(), err) == (0, f"{here}/report.html", "")
    assert (tmp_path / "run/report.html").exists()


def test_report_as_json_beside_another_run(run: Run, tmp_path: Path) -> None:
    one, other = results(tmp_path / "one"), results(tmp_path / "other", "phased")
    status, out, _ = run("report", one, "--beside", other, "--json")
    assert (status, Path(json.loads(out)["markdown"]).exists()) == (0, True)
    assert (tmp_path / "one/pictures/beside.png").exists()


def test_a_folder_without_results_is_refused(run: Run, tmp_path: Path) -> None:
    status, out, err = run("report", str(tmp_path))
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert "no results.json" in err

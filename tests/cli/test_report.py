"""`draftwise report` on a made-up folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.measure.report import folder as made

from .conftest import Refused, Run


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


def test_a_folder_without_results_is_refused(refused: Refused, tmp_path: Path) -> None:
    assert "no results.json" in refused("report", str(tmp_path))


GOOD = {"method": "static-5", "speedup": 1.5, "interval": [1.4, 1.6], "prompts": 9, "pulls": {"ngram:5": 3}}
SIMULATED: dict[str, Any] = {
    "policies": [{"policy": "ucb1", "rounds": 3.0, "best_choices": 0.5, "switches": 1.0}],
    "arms": [],
    "marks": [9],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", b"caf\xe9"),
        ("results.json", b"[1]"),
        ("results.json", b"[" * 100_000),
        ("results.json", {"results": [GOOD | {"speedup": "fast"}]}),
        ("results.json", {"results": [GOOD | {"interval": ["a", "b"]}]}),
        ("results.json", {"results": [GOOD | {"interval": 3}]}),
        ("results.json", {"results": [GOOD | {"prompts": True}]}),
        ("results.json", {"results": [GOOD | {"pulls": {"ngram:5": "many"}}]}),
        ("results.json", {"results": [GOOD | {"pulls": 3}]}),
        ("results.json", {"results": ["static-5"]}),
        ("results.json", {"results": 5}),
        ("results.json", {"results": [GOOD], "machine": [1]}),
        ("results.json", {"results": [GOOD], "busy": 4}),
        ("results.json", {"results": [GOOD], "absent": ["vllm"]}),
        ("prompts.jsonl", b"\xe9\n{}\n"),
        ("prompts.jsonl", [3]),
        ("prompts.jsonl", [{"method": "static-5"}]),
        ("prompts.jsonl", [{"method": "static-5", "prompt": 0, "seconds": "two"}]),
        ("rounds.jsonl", [{"arm": "ngram:5"}]),
        ("rounds.jsonl", [{"method": "static-5", "length": "five"}]),
        ("pieces.jsonl", [{"method": "static-5", "prompt": 0, "pieces": [["a"]]}]),
        ("oracle.json", {"lengths": {"0": [["a", "b", "c"]]}}),
        ("oracle.json", {"results": [{"category": "all"}]}),
        ("simulation.json", SIMULATED),
        ("simulation.json", {"policies": "many"}),
    ],
)
def test_damaged_results_are_told_in_one_line(
    run: Run, refused: Refused, tmp_path: Path, name: str, content: Any
) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"results": [GOOD, GOOD | {"method": "none"}]}))
    assert run("report", str(tmp_path))[0] == 0
    if isinstance(content, list):
        content = "".join(json.dumps(line) + "\n" for line in content).encode()
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    err = refused("report", str(tmp_path))
    assert str(tmp_path) in err
    assert "again" in err or "remove it" in err

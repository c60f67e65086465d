"""The examples run as they stand, and the notebook has the outputs of its cells."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from draftwise.policies.auto.drafts import Reason
from tests.effort import THOROUGH, thorough

EXAMPLES = Path(__file__).parents[1] / "examples"
SAID = {
    "counting_executor.py": "passes by kind: {'eager': ",
    "generate.py": "same tokens as plain decoding: True",
    "inside_transformers.py": "same tokens as model.generate alone: True",
    "own_drafter.py": "same tokens as plain decoding: True",
    "own_policy.py": "rounds by arm: {",
    "replay_policy.py": "rounds, 1.00 tokens per target pass",
    "train_drafter.py": "drafted tokens accepted",
}
QUICK = ("counting_executor.py", "own_drafter.py", "own_policy.py")
SECRETS = re.compile(r"/(home|root|work|tmp|usr)/")
"""Paths of the machine that ran the notebook."""


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], str]:
    """Runs a program as it stands, in an empty folder, and returns what it prints."""

    def printed(program: Path) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(program)])
        monkeypatch.setenv("MPLBACKEND", "agg")
        runpy.run_path(str(program), run_name="__main__")
        return capsys.readouterr().out

    return printed


def cells() -> list[dict[str, Any]]:
    book = json.loads((EXAMPLES / "auto.ipynb").read_text())
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", SAID if THOROUGH else QUICK)
def test_runs_elsewhere(name: str, run: Callable[[Path], str], tmp_path: Path) -> None:
    assert SAID[name] in run(EXAMPLES / name)
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_every_example_is_small_says_what_it_shows_and_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(SAID)
    for file in EXAMPLES.glob("*.py"):
        text = file.read_text()
        assert len(text.splitlines()) <= 55
        about = ast.get_docstring(ast.parse(text))
        assert about and "Shows" in about and re.search(r"Takes some \d+\s+seconds", about), file.name
        assert f"]({file.name})" in listed
    assert "](auto.ipynb)" in listed


@thorough
def test_the_notebook_runs(run: Callable[[Path], str], tmp_path: Path) -> None:
    """Its cells in order, as one program without a kernel."""
    program = tmp_path / "cells.py"
    program.write_text("\n".join("".join(cell["source"]) for cell in cells()))
    assert "accepted per round" in run(program)


def test_the_notebook_reads_fields_that_exist() -> None:
    """Where the cells are not run."""
    source = "\n".join("".join(cell["source"]) for cell in cells())
    read = set(re.findall(r"\breason\.(\w+)", source))
    assert read and read <= {field.name for field in fields(Reason)}


def test_the_notebook_has_its_outputs() -> None:
    shown = [output.get("data", {}) for cell in cells() for output in cell["outputs"]]
    assert any("image/png" in data for data in shown), "the chart"
    pages = ["".join(data.get("text/html", "")) for data in shown]
    assert any("background:rgba" in page for page in pages), "text coloured by drafter"
    counts = [cell["execution_count"] for cell in cells()]
    assert counts == list(range(1, len(counts) + 1)), "run once, from the top"
    assert not SECRETS.search((EXAMPLES / "auto.ipynb").read_text())

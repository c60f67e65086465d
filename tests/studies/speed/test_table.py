"""The tables of docs/archive/table.md, from replays of a small world."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from draftwise.measure.trace.results import replayed
from tests.measure.trace.sims import COSTS, recorded, settings

POLICIES = ["static-2?drafter=good", "static-4?drafter=good", "static-4?drafter=bad", "linucb?length=4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A greedy run and a drawn one, which has no optimum."""
    folder = tmp_path_factory.mktemp("runs")
    replayed(recorded(folder / "a", n=6), POLICIES, COSTS, folder / "greedy")
    drawn = recorded(folder / "b", n=6, sampling=settings(temperature=1.0, seed=1))
    replayed(drawn, POLICIES[:2], COSTS, folder / "drawn")
    return folder / "greedy", folder / "drawn"


def table(*arguments: str) -> list[list[str]]:
    """The cells of a printed table, the line below its head left out."""
    done = subprocess.run(
        [sys.executable, "-m", "studies.speed.table", *arguments], capture_output=True, text=True, check=True
    )
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    return [lines[0], *lines[2:]]


def test_all_methods_the_fastest_first(runs: tuple[Path, Path]) -> None:
    head, *body = table("total", str(runs[0]))
    assert head[0] == "policy" and {row[0] for row in body} == {"`none`", *(f"`{p}`" for p in POLICIES)}
    speeds = [float(row[2].split()[0]) for row in body]
    assert speeds == sorted(speeds, reverse=True)
    assert next(row for row in body if row[0] == "`none`")[2] == "1.00 (1.00 to 1.00)"
    assert all(row[4].endswith(" %") for row in body)


def test_a_column_a_category(runs: tuple[Path, Path]) -> None:
    for name, whole, part in (("categories", ")", "0123456789"), ("optimum", "%", "%")):
        head, *body = table(name, str(runs[0]))
        assert head == ["policy", "all", "c0", "c1", "c2"] and len(body) == 5
        assert all(row[1].endswith(whole) for row in body), "six prompts have an interval"
        assert all(cell[-1] in part for row in body for cell in row[2:]), "and two have none"


def test_runs_beside_each_other_with_a_dash_for_who_is_not_there(runs: tuple[Path, Path]) -> None:
    head, *body = table("beside", *map(str, runs))
    assert head == ["policy", "greedy", "drawn"]
    found = {row[0]: row[1:] for row in body}
    assert found["`linucb?length=4`"][1] == "-" and "-" not in found["`static-2?drafter=good`"]


def test_a_method_by_its_length(runs: tuple[Path, Path]) -> None:
    head, *body = table("lengths", str(runs[0]))
    assert head == ["policy", "K=2", "K=4"]
    found = {row[0]: row[1:] for row in body}
    assert set(found) == {"`static-K?drafter=good`", "`static-K?drafter=bad`", "`linucb?length=K`"}
    assert found["`static-K?drafter=bad`"][0] == "-" and found["`static-K?drafter=good`"][0] != "-"

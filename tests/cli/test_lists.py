from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from draftwise.models.load import list_parts, list_zoo
from draftwise.registry import names

from .conftest import Result

Run = Callable[..., Result]


def test_models(run: Run) -> None:
    status, out, err = run("models")
    heading, *rows = out.splitlines()
    assert (status, err) == (0, "")
    assert heading.split()[:2] == ["model", "parameters"]
    assert [row.split()[:2] for row in rows[:2]] == [["zoo:target", "22.8M"], ["zoo:general", "1.2M"]]
    assert len(rows) == len(list_zoo()) + len(list_parts())


def test_models_as_json(run: Run) -> None:
    rows = json.loads(run("models", "--json")[1])
    assert rows[0]["name"] == "zoo:target"
    assert rows[0]["parameters"] == 22_816_128
    assert (rows[0]["layers"], rows[0]["width"]) == (12, 384)


@pytest.mark.parametrize("group", ["drafters", "policies"])
def test_catalogue(run: Run, group: str) -> None:
    _, out, _ = run(group)
    assert [line.split()[0] for line in out.splitlines()[1:]] == names(group)
    rows = json.loads(run(group, "--json")[1])
    assert [row["name"] for row in rows] == names(group)
    assert all(row["help"] for row in rows)


def test_options_are_shown_with_their_defaults(run: Run) -> None:
    ngram = next(line for line in run("drafters")[1].splitlines() if line.startswith("ngram"))
    assert "min=" in ngram
    assert "max=" in ngram
    static = next(row for row in json.loads(run("policies", "--json")[1]) if row["name"] == "static")
    assert static["options"]["length"] == 5

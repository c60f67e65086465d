"""The dashboard asks for metrics and labels that the server has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftwise.cli import main

from .conftest import Served

WORD = r"[a-zA-Z_:][a-zA-Z0-9_:]*"


@pytest.fixture
def board(capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["serve", "--print-grafana"]) == 0
    return json.loads(capsys.readouterr().out)


def parsed(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression in PromQL, each with the labels that are asked of it."""
    plain = re.sub(r"\[[^]]*\]", "", re.sub(r'"[^"]*"', '""', expression))
    plain = re.sub(r"\b(?:on|ignoring|group_left|group_right) \([^)]*\)", "", plain)
    found = metrics(re.sub(r"\bby \([^)]*\)", "", plain))
    for group in re.finditer(r"\bby \(([^)]*)\) \(", plain):
        for name in metrics(plain[group.end() : closing(plain, group.end())]):
            found[name] |= set(re.findall(WORD, group[1]))
    return found


def metrics(plain: str) -> dict[str, set[str]]:
    """Names that no parenthesis follows, with the labels in their braces."""
    found: dict[str, set[str]] = {}
    for name, matchers in re.findall(rf"(?<![\w:.])({WORD})(?![\w:]|\s*\()(?:{{([^}}]*)}})?", plain):
        found.setdefault(name, set()).update(re.findall(rf"({WORD})\s*[=!]", matchers))
    return found


def closing(text: str, at: int) -> int:
    """Where the parenthesis ends that is open before `at`."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def test_expressions_are_parsed() -> None:
    asked = (
        'histogram_quantile(0.9, sum by (le) (rate(a:b_bucket{x=~"$y"}[5m]))) / on () group_left () sum(c)'
    )
    assert parsed(asked) == {"a:b_bucket": {"x", "le"}, "c": set()}


def test_every_metric_and_label_of_the_board_is_on_the_metrics_page(server: Served, board: Any) -> None:
    server.complete(max_tokens=30)
    known: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names: set[str] = set()
    for expression in asked:
        metrics = parsed(expression)
        assert metrics, expression
        for name, labels in metrics.items():
            assert name in known, f"{name} in {expression}"
            names.add(name)
            assert "model_name" in labels and labels <= known[name], f"{labels} in {expression}"
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing)
    (model,) = [one for one in board["templating"]["list"] if one["name"] == "model"]
    assert re.fullmatch(r"label_values\(([\w:]+), model_name\)", model["query"]["query"]).group(1) in known  # type: ignore[union-attr]
    wanted = {
        "generation_tokens",
        "num_requests_running",
        "time_to_first_token",
        "inter_token",
        "e2e_request",
    }
    wanted |= {"spec_decode_num_accepted", "spec_decode_num_draft_tokens", "num_rounds", "phase_seconds"}
    assert [part for part in wanted if not any(part in name for name in names)] == []


def test_the_board_can_be_imported_as_it_is(board: Any) -> None:
    """For any Prometheus and any model, no two panels in one place."""
    assert board["id"] is None and board["schemaVersion"] == 42
    assert {one["name"] for one in board["templating"]["list"]} == {"datasource", "model"}
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["title"] and panel["description"]
        parts = [panel, *panel["targets"]]
        assert {part["datasource"]["uid"] for part in parts} == {"${datasource}"}
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells

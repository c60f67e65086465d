"""The dashboard asks for metrics and labels that the server has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftwise.cli import main

from .conftest import Served


@pytest.fixture
def board(capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["serve", "--print-grafana"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_metric_and_label_of_the_board_is_on_the_metrics_page(server: Served, board: Any) -> None:
    server.complete(max_tokens=30)
    known: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    names: set[str] = set()
    for expression in (target["expr"] for panel in board["panels"] for target in panel["targets"]):
        asked = re.findall(r"((?:vllm|draftwise):\w+)\{([^}]*)\}", expression)
        assert asked and len(asked) == len(re.findall("(?:vllm|draftwise):", expression)), expression
        grouped = {
            word for group in re.findall(r"\bby \(([^)]*)\)", expression) for word in group.split(", ")
        }
        assert grouped <= set.union(*(known[name] for name, _ in asked)), expression
        for name, matchers in asked:
            labels = set(re.findall(r"(\w+)\s*[=!]", matchers))
            assert "model_name" in labels and labels <= known[name], f"{labels} in {expression}"
            names.add(name)
        for pair in ("()", "[]", "{}"):
            assert expression.count(pair[0]) == expression.count(pair[1])
    (model,) = [one for one in board["templating"]["list"] if one["name"] == "model"]
    assert re.fullmatch(r"label_values\(([\w:]+), model_name\)", model["query"]["query"]).group(1) in known  # type: ignore[union-attr]
    wanted = "generation_tokens num_requests_running time_to_first_token inter_token e2e_request num_rounds"
    wanted += " spec_decode_num_accepted spec_decode_num_draft_tokens phase_seconds"
    assert [part for part in wanted.split() if not any(part in name for name in names)] == []


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

"""What would take llguidance minutes is known before it reads it."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.serve.costs import MEETING, MULTIPLE, dear, dear_grammar

TEXTS = [{"pattern": f".*[a{chr(98 + i)}].{{8}}"} for i in range(MEETING + 1)]
NAMES: dict[str, Any] = {f"^a{i}_[a-z]+$": {} for i in range(300)}
DEAR: dict[str, list[dict[str, Any]]] = {
    "allOf": [
        {"allOf": TEXTS},
        {"items": {"allOf": [{"allOf": TEXTS[:5]}, {"anyOf": TEXTS[5:]}]}},
        {"$ref": "#/$defs/a", "pattern": "b", "$defs": {"a": {"allOf": TEXTS}}},
        {"$ref": "#/$defs/a", "pattern": "b", "$defs": {"a": {"properties": {"x": {"anyOf": TEXTS}}}}},
        {"prefixItems": [{"allOf": TEXTS[:7]}] * 4},
    ],
    "multipleOf": [
        {"multipleOf": 99_999_999},
        {"items": {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}},
        {"prefixItems": [{"multipleOf": n} for n in range(900, 1000)]},
    ],
    "patternProperties": [{"patternProperties": NAMES}],
}
CHEAP: list[dict[str, Any]] = [
    {"allOf": TEXTS[:MEETING]},
    {"multipleOf": MULTIPLE},
    {"properties": {f"a{i}": text for i, text in enumerate(TEXTS * 9)}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": TEXTS}}, "title": "A"},
    {"const": {"allOf": TEXTS, "multipleOf": 10**9}},
    {"properties": {"multipleOf": {"type": "null"}, "patternProperties": {"type": "null"}}},
]


@pytest.mark.parametrize(("word", "schema"), [(word, one) for word in DEAR for one in DEAR[word]])
def test_what_takes_minutes_is_told_by_its_keyword(word: str, schema: Any) -> None:
    assert word in dear(schema)


@pytest.mark.parametrize("schema", CHEAP)
def test_what_is_read_at_once_is_not(schema: Any) -> None:
    assert dear(schema) == ""


def test_several_schemas_are_counted_together() -> None:
    one = {"allOf": TEXTS[: MEETING - 1]}
    assert dear(one, one) == "" and "allOf" in dear(*[one] * 4)


def test_operators_of_a_grammar_are_counted_outside_its_texts() -> None:
    assert dear_grammar("T: " + " & ".join(["/a/"] * 10)) and dear_grammar("T: ~" * 9)
    assert not dear_grammar('T: "&&&&&&&&&&" /&~&~&~&~&~&~/')
    assert "response_format" in dear_grammar("start: %json {}")

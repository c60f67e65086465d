"""What would take llguidance minutes is known before it reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftwise.serve.schemas import MAX_MEETING, MAX_MULTIPLE, find_cost, find_grammar_cost

TEXTS = [{"pattern": f".*[a{chr(98 + i)}].{{8}}"} for i in range(MAX_MEETING + 1)]
NAMES: dict[str, Any] = {f"^a{i}_[a-z]+$": {} for i in range(300)}


def doubled(place: Callable[[Any], Any], levels: int = 40) -> dict[str, Any]:
    """A schema of a few kB whose every level refers twice to the next."""
    defs = {f"a{n}": place({"$ref": f"#/$defs/a{n + 1}"}) for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": defs | {f"a{levels}": {"type": "string", "pattern": "a+"}}}


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
    "$ref": [
        doubled(lambda ref: {"allOf": [ref, ref]}),
        doubled(lambda ref: {"properties": {"x": {"allOf": [ref, {"items": {"allOf": [ref]}}]}}}),
        doubled(lambda ref: {"prefixItems": [ref | {"type": "array"}, ref | {"minItems": 1}]}),
        doubled(
            lambda ref: {"patternProperties": {"^a": ref | {"type": "object"}, "^b": {"anyOf": [ref]} | ref}},
            80,
        ),
    ],
}
CHEAP: list[dict[str, Any]] = [
    {"allOf": TEXTS[:MAX_MEETING]},
    {"multipleOf": MAX_MULTIPLE},
    {"properties": {f"a{i}": text for i, text in enumerate(TEXTS * 9)}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": TEXTS}}, "title": "A"},
    {"const": {"allOf": TEXTS, "multipleOf": 10**9}},
    doubled(lambda ref: {"properties": {"x": ref, "y": ref | {"title": "Y"}}, "anyOf": [ref, ref]}),
    {"allOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"items": {"$ref": "#"}}}},
    {"properties": {"multipleOf": {"type": "null"}, "patternProperties": {"type": "null"}}},
]


@pytest.mark.parametrize(("word", "schema"), [(word, one) for word in DEAR for one in DEAR[word]])
def test_what_takes_minutes_is_told_by_its_keyword(word: str, schema: Any) -> None:
    assert word in find_cost(schema)


@pytest.mark.parametrize("schema", CHEAP)
def test_what_is_read_at_once_is_not(schema: Any) -> None:
    assert find_cost(schema) == ""


def test_several_schemas_are_counted_together() -> None:
    one = {"allOf": TEXTS[: MAX_MEETING - 1]}
    assert find_cost(one, one) == "" and "allOf" in find_cost(*[one] * 4)


def test_operators_of_a_grammar_are_counted_outside_its_texts() -> None:
    assert find_grammar_cost("T: " + " & ".join(["/a/"] * 10)) and find_grammar_cost("T: ~" * 9)
    assert not find_grammar_cost('T: "&&&&&&&&&&" /&~&~&~&~&~&~/')
    assert "response_format" in find_grammar_cost("start: %json {}")

"""Schemas are obeyed or refused."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest

from draftwise.serve.sandbox import narrow_schema, translate_form

from .conftest import vocabulary

TOKENS = vocabulary([*map(chr, range(128)), "</s>"])
LETTER = {"$defs": {"a": {"type": "integer"}}}
# By keyword: a schema that grammars have read over, and a text that it forbids.
HARD: list[tuple[str, dict[str, Any], str]] = [
    ("minLength", {"minLength": 3}, '"a"'),
    ("maximum", {"maximum": 3}, "7"),
    ("minItems", {"minItems": 2}, "[1]"),
    ("required", {"required": ["a"]}, "{}"),
    ("required", {"type": "object", "required": ["a"], "additionalProperties": True}, '{"c": 1}'),
    ("maximum", {"$ref": "#/$defs/a", "maximum": 3} | LETTER, "7"),
    ("maximum", {"anyOf": [{"type": "integer"}, {"type": "string"}], "maximum": 3}, "7"),
    ("maximum", {"allOf": [{"type": "integer"}], "maximum": 3}, "7"),
    ("properties", {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, "{}"),
    ("type", {"anyOf": [{"minimum": 3}], "type": "string"}, "7"),
    ("type", {"enum": [1, "a"], "type": "string"}, "1"),
    ("type", {"const": True, "type": "integer"}, "true"),
    ("maxLength", {"enum": ["abc", "a"], "maxLength": 1}, '"abc"'),
    (
        "patternProperties",
        {"type": "object", "properties": {"ba": {}}, "patternProperties": {"^b": {"type": "integer"}}},
        '{"ba": "x"}',
    ),
    (
        "minProperties",
        {"type": "object", "additionalProperties": True, "minProperties": 2},
        '{"a": 1, "a": 2}',
    ),
    ("format", {"type": "string", "format": "date", "pattern": "^1"}, '"2020-01-01"'),
    ("format", {"type": "string", "format": "idn-email"}, '"!"'),
    ("format", {"format": "date"}, '"!"'),
    ("dependencies", {"type": "object", "properties": {"a": {}}, "dependencies": {"a": ["b"]}}, '{"a": 1}'),
    ("extends", {"extends": {"type": "integer"}}, '"a"'),
    ("propertyNames", {"type": "object", "propertyNames": {"enum": ["a"]}}, '{"b": 1}'),
    ("divisibleBy", {"type": "integer", "divisibleBy": 2}, "3"),
    ("properties", {"properties": {"a": {"type": "null"}}}, '{"\\u0061": 1}'),
    ("patternProperties", {"patternProperties": {"^a": {"type": "null"}}}, '{"\\u0061": 1}'),
    ("const", {"const": "a\0b"}, '"ab"'),
    ("enum", {"enum": [{"a\x7f": 1}]}, '{"a": 1}'),
    ("pattern", {"type": "string", "pattern": "^a\\x01b$"}, '"ab"'),
    ("pattern", {"type": "string", "pattern": "^a\\u{7f}b$"}, '"ab"'),
    ("multipleOf", {"type": "number", "multipleOf": 0.0001}, "23.4"),
    ("format", {"type": "string", "format": "date"}, '"2021-02-29"'),
    ("format", {"type": "string", "format": "date"}, '"0000-01-01"'),
    ("format", {"format": "date-time"}, '"2021-02-30T10:00:00Z"'),
    ("format", {"format": "date-time"}, '"1998-12-31T22:59:60Z"'),
    ("format", {"format": "time"}, '"22:59:60Z"'),
    ("format", {"format": "hostname"}, '"xn--X"'),
    ("$schema", {"$schema": "http://json-schema.org/draft-03/schema#", "format": "color"}, '"a"'),
    (
        "$id",
        {"allOf": [{"$id": "b/", "$ref": "a"}], "$defs": {"a": {"$id": "a", "type": "null"}}},
        "1",
    ),
    ("$dynamicRef", {"$dynamicRef": "#x", "$defs": {"a": {"$dynamicAnchor": "x", "type": "null"}}}, "1"),
]
# A schema, a text that fits it, and some that do not.
OBEYED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"type": "string", "minLength": 2, "maxLength": 3}, '"ab"', ['"a"', '"abcd"', '"a\x01"', '"a\tb"']),
    ({"type": ["string", "null"], "maxLength": 2}, "null", ['"abc"', "1", '"\x00"']),
    ({"type": "string", "pattern": "^[^a]$"}, '"b"', ['"a"', '"\x01"', '"""', '"bb"']),
    ({"type": "integer", "minimum": 3, "maximum": 12, "multipleOf": 2}, "4", ["3", "2", "14"]),
    ({"type": "number", "exclusiveMinimum": 3}, "3.5", ["3", "3.0", "-4"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}, "[null]", ["[]", "[1]"]),
    (
        {"type": "array", "prefixItems": [{"const": 1}], "minItems": 1, "items": False},
        "[1]",
        ["[2]", "[1, 1]"],
    ),
    ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, '{"a": 1}', ["{}", '{"b": 1}', "1"]),
    ({"properties": {"a": {"type": "null"}}}, '{"a": null}', ['{"a": 1}']),
    ({"items": {"type": "null"}}, "[null]", ["[1]"]),
    ({"type": "object", "patternProperties": {"^b": {"type": "null"}}}, '{"b": null}', ['{"b": 1}']),
    (
        {"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 1},
        '{"a": null}',
        ['{"a": 1}'],
    ),
    ({"type": "object", "additionalProperties": True, "minProperties": 1}, '{"a": 1}', ["{}"]),
    ({"type": ["integer", "null"], "format": "int64"}, "7", ['"a"', "7.5"]),
    ({"type": "integer", "format": "date", "pattern": "a", "maxItems": 1}, "7", ['"a"']),
    ({"type": "string", "format": "of-ours", "pattern": "^a"}, '"a"', ["7", '"b"']),
    ({"type": "string", "format": "date"}, '"2020-01-01"', ['"2020"']),
    ({"format": "date", "pattern": "29$"}, '"2000-02-29"', ['"1900-02-29"', '"2000-02-28"']),
    ({"format": "date-time", "maxLength": 20}, '"2024-02-29T23:59:59Z"', ['"2024-02-29T23:59:59+01:00"']),
    ({"format": "hostname"}, '"a-b.c"', ['"a--b"', '"-a"']),
    ({"type": "number", "multipleOf": 0.5}, "1.5", ["1.25"]),
    ({"enum": [1, "a", None], "type": ["integer", "string", "null"]}, '"a"', ["2", "true"]),
    ({"$ref": "#/$defs/a", "title": "A"} | LETTER, "7", ['"a"']),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, "null", ['"a"']),
]


@pytest.fixture(scope="module")
def allows() -> Any:
    """Whether the grammar of a schema allows a text; None if the schema is refused."""

    def allowed(schema: Any, text: str) -> bool | None:
        try:
            grammar = translate_form("schema", json.dumps(schema))
        except ValueError:
            return None
        matcher = llguidance.LLMatcher(TOKENS, grammar, log_level=0)
        if matcher.is_error():
            return None
        return matcher.try_consume_tokens([*map(ord, text)]) == len(text) and matcher.is_accepting()

    return allowed


@pytest.mark.parametrize("word, schema, text", HARD)
def test_no_text_is_allowed_that_a_schema_forbids(allows: Any, word: str, schema: Any, text: str) -> None:
    assert not allows(schema, text)
    assert not allows({"type": "array", "items": schema}, f"[{text}]")


@pytest.mark.parametrize("schema, good, bad", OBEYED)
def test_what_is_common_is_obeyed(allows: Any, schema: Any, good: str, bad: list[str]) -> None:
    assert allows(schema, good)
    assert not [text for text in bad if allows(schema, text)]


@pytest.mark.parametrize("schema", [schema for schema, _, _ in OBEYED], ids=str)
def test_drawn_texts_fit_their_schema(schema: Any) -> None:
    matcher = llguidance.LLMatcher(TOKENS, translate_form("schema", json.dumps(schema)), log_level=0)
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    texts = [text for seed in range(6) if (text := drawn(matcher.deep_copy(), Random(seed)))]
    assert texts
    for text in texts:
        judge.validate(json.loads(text))


def drawn(matcher: Any, rng: Random) -> str:
    """A text by a grammar, which hurries to its end; empty if it does not come there."""
    text = ""
    for _ in range(200):
        if matcher.is_accepting() and rng.random() < 0.5:
            return text
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        free = [chr(token) for token in np.flatnonzero(bits[:128])]
        ends = [c for c in free if c in '"}]']
        if not free:
            break
        text += rng.choice(ends if ends and rng.random() < 0.4 else free)
        assert matcher.try_consume_tokens([ord(text[-1])])
    return text if matcher.is_accepting() else ""


@pytest.mark.parametrize(
    "odd",
    [
        {"format": []},
        {"type": "string", "format": {"a": 1}},
        {"minProperties": "a"},
        {"patternProperties": "a"},
        {"multipleOf": "a", "pattern": 7, "$ref": 3, "const": None},
        7,
    ],
)
def test_what_is_no_schema_is_no_fault_here(odd: Any) -> None:
    narrow_schema(odd)


def test_a_property_may_be_named_like_a_keyword() -> None:
    schema = {"properties": {"format": {"enum": [{"format": "a"}]}}, "format": "int32"}
    assert narrow_schema(schema) == {"properties": schema["properties"]}

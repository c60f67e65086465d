"""Schemas, grammars and regexes that grow when they are written out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

LEVELS = (3, 6, 10, 14, 18, 24, 40)
LEAVES: tuple[Any, ...] = (
    {"type": "string", "pattern": "a+"},
    {"type": "object", "properties": {"x": {"type": "integer"}}},
    {"type": "array", "items": {"type": "number", "minimum": 0.5}},
    {"enum": ["a", 1, None]},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "object"}]},
)
Place = Callable[[Any], dict[str, Any]]
PLACES: tuple[Place, ...] = (
    lambda ref: {"allOf": [ref, ref]},
    lambda ref: {"anyOf": [ref, {"items": ref}]},
    lambda ref: {"allOf": [{"anyOf": [ref, {"minItems": 1}]}, {"anyOf": [ref, {"maxItems": 9}]}]},
    lambda ref: {"type": "object", "properties": {"x": ref | {"type": "object"}, "y": ref | {"minItems": 1}}},
    lambda ref: {"properties": {"x": {"allOf": [ref, ref]}, "y": ref}},
    lambda ref: {"patternProperties": {"^a": ref | {"type": "object"}, "^b": ref | {"maxItems": 3}}},
    lambda ref: {
        "additionalProperties": ref | {"type": "object"},
        "properties": {"x": ref | {"minLength": 1}},
    },
    lambda ref: {"prefixItems": [ref | {"type": "array"}, ref, ref | {"type": "array"}], "items": False},
    lambda ref: {"items": ref, "minItems": 20, "maxItems": 50},
)
# Each makes a rule of the next level's name; the words of a terminal are written in capitals.
RULES = ("{0} {0}", "{0} | {0} {0}", "({0} {0}){{1,40}}", '{0}? "x" {0}', "({0} | /[a-z]+/)*", "{0}{{0,60}}")
MARKED = (
    "{0} {0}",
    '{0} "x" | {0} "y"',
    "{0}{{1,40}}",
    "/[ab]{{1,9}}/ {0}",
    "({0} & /[a-f]{{1,30}}/)",
    "~{0}",
)
PARTS = ("({0}){{1,40}}", "({0}|b{0})", "({0}{0})", r"(\p{{L}}|{0}){{0,30}}", "(.*{0}.{{9}})", "({0})*c?")


def growing(draw: Random) -> dict[str, Any]:
    """Return the field of a body that asks for a form which grows."""
    levels, kind = draw.choice(LEVELS), draw.randrange(5)
    if kind < 2:
        schema = {"name": "a", "schema": _schema(draw, levels), "strict": draw.random() < 0.7}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if kind == 2:
        text = "a"
        for _ in range(levels):
            longer = draw.choice(PARTS).format(text)
            text = longer if len(longer) < 20_000 else text
        return {"regex": text}
    name, choices = ("T", MARKED) if kind == 3 else ("r", RULES)
    rules = [f"{name}{n}: {draw.choice(choices).format(f'{name}{n + 1}')}" for n in range(levels)]
    lark = "\n".join([f"start: {name}0", *rules, f'{name}{levels}: "a"'])
    if kind == 4 and draw.random() < 0.3:
        lark = lark.replace("start:", "root:").replace(": ", " ::= ").replace("/", "")
    return {"grammar": lark}


def _schema(draw: Random, levels: int) -> dict[str, Any]:
    one, mixed = draw.choice(PLACES), draw.random() < 0.5
    defs = {}
    for n in range(levels):
        place = draw.choice(PLACES) if mixed else one
        defs[f"a{n}"] = place({"$ref": f"#/$defs/a{n + 1}"})
    return {"$ref": "#/$defs/a0", "$defs": defs | {f"a{levels}": draw.choice(LEAVES)}}

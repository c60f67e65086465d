"""Forms that grow when they are written out: a text or one clear refusal, and no memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

pytest.importorskip("llguidance")

from studies.serve.local import counting, resident
from tests.effort import THOROUGH

from .conftest import MODEL

LEVELS = (3, 6, 10, 18, 24, 40)
LEAVES: tuple[Any, ...] = (
    {"type": "string", "pattern": "a+"},
    {"type": "array", "items": {"type": "number", "minimum": 0.5}},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "object"}]},
)
PLACES: tuple[Callable[[Any], dict[str, Any]], ...] = (
    lambda ref: {"allOf": [ref, ref]},
    lambda ref: {"allOf": [{"anyOf": [ref, {"minItems": 1}]}, {"anyOf": [ref, {"maxItems": 9}]}]},
    lambda ref: {"properties": {"x": {"allOf": [ref, ref]}, "y": ref | {"minItems": 1}}},
    lambda ref: {"patternProperties": {"^a": ref | {"type": "object"}, "^b": ref | {"maxItems": 3}}},
    lambda ref: {"prefixItems": [ref | {"type": "array"}, ref, ref | {"type": "array"}], "items": False},
    lambda ref: {"items": ref, "minItems": 20, "maxItems": 50},
)
# Each makes a rule of the next level's name; the words of a terminal are written in capitals.
RULES = ("{0} {0}", "{0} | {0} {0}", "({0} {0}){{1,40}}", "({0} | /[a-z]+/)*", "{0}{{0,60}}")
MARKED = ("{0} {0}", "{0}{{1,40}}", "/[ab]{{1,9}}/ {0}", "({0} & /[a-f]{{1,30}}/)", "~{0}")
PARTS = ("({0}){{1,40}}", "({0}|b{0})", "({0}{0})", r"(\p{{L}}|{0}){{0,30}}", "(.*{0}.{{9}})")


def growing(draw: Random) -> dict[str, Any]:
    """The field of a body that asks for a form which grows."""
    levels, kind = draw.choice(LEVELS), draw.randrange(4)
    if kind == 0:
        text = "a"
        for _ in range(levels):
            longer = draw.choice(PARTS).format(text)
            text = longer if len(longer) < 20_000 else text
        return {"regex": text}
    if kind == 1:
        name, choices = draw.choice([("T", MARKED), ("r", RULES)])
        rules = [f"{name}{n}: {draw.choice(choices).format(f'{name}{n + 1}')}" for n in range(levels)]
        return {"grammar": "\n".join([f"start: {name}0", *rules, f'{name}{levels}: "a"'])}
    place = draw.choice(PLACES)
    defs = {
        f"a{n}": (place if kind == 2 else draw.choice(PLACES))({"$ref": f"#/$defs/a{n + 1}"})
        for n in range(levels)
    }
    schema = {"$ref": "#/$defs/a0", "$defs": defs | {f"a{levels}": draw.choice(LEAVES)}}
    form = {"name": "a", "schema": schema, "strict": draw.random() < 0.7}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def test_what_grows_takes_no_memory_and_breaks_no_server(serve: Any, tokenizer: Any) -> None:
    server, before = serve(counting(tokenizer)), resident()
    for k in range(5000 if THOROUGH else 12):
        body = {"model": MODEL, "prompt": "ab", "max_tokens": 1, **growing(Random(f"test {k}"))}
        answer = server.client.post("/v1/completions", json=body)
        assert answer.status_code in (200, 400), (body, answer.text)
        said = answer.json().get("error", {}).get("message", "")
        assert "\n" not in said and "NoExtension" not in said and len(said) < 400
    assert resident() - before < 1 << 30

"""Grammars that cost too much, or grow, are refused, and everyone else is served."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

pytest.importorskip("llguidance")

from draftwise import Decoder
from draftwise.errors import UserError
from draftwise.serve import grammar as grammars
from draftwise.serve import sandbox
from draftwise.serve.bodies import Completion
from draftwise.serve.errors import APIError
from draftwise.serve.grammar import Grammars
from studies.serve.local import counting, resident
from tests.effort import THOROUGH

from .conftest import MODEL

NUMBERS = {f"p{i}": {"type": ["number", "null"]} for i in range(1500)}
DEAR = {
    "schema": json.dumps({"type": "object", "properties": NUMBERS}),
    "grammar": "start: " + " | ".join(f'"k" /{k}/' for k in range(3000)),
}
GROWS = "((a{1,999}){1,999}){1,999}"


@pytest.fixture(scope="module")
def decoder(tokenizer: Any) -> Decoder:
    return counting(tokenizer)


@pytest.fixture(scope="module")
def made(decoder: Decoder) -> Grammars:
    return Grammars(decoder)


@pytest.mark.parametrize("kind", DEAR)
def test_what_costs_too_much_is_refused_and_the_next_is_read(made: Grammars, kind: str) -> None:
    with pytest.raises(APIError, match=f"the {kind} cannot be obeyed: ") as refused:
        made.compile((kind, DEAR[kind]))
    assert refused.value.status == 400 and "\n" not in refused.value.message
    assert made.compile(("regex", "[ab]{2}"))().matcher is not None


def test_what_is_slow_to_write_is_refused(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(APIError, match=r"the grammar cannot be obeyed: .*Too many items"):
        made.compile(("grammar", 'start: "a"{1000000000}'))
    assert made.sandbox is not None
    monkeypatch.setattr(sandbox, "SPARE_SECONDS", -1.0)
    with pytest.raises(ValueError, match=r"it takes more than 0\.02 seconds a token"):
        sandbox.compile_form(made.sandbox.tokens, ("regex", "[a-f]{3}"))


DEEP = {
    "schema": '{"items":' * 9000 + "{}" + "}" * 9000,
    "regex": "(" * 20_000 + ")" * 20_000,
    "grammar": "root ::= " + "(" * 9000 + '"a"' + ")" * 9000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_nested_too_deeply_is_refused(made: Grammars, kind: str) -> None:
    with pytest.raises(APIError, match=f"the {kind} cannot be obeyed: "):
        made.compile((kind, DEEP[kind]))


def test_one_that_becomes_too_expensive_ends_its_text(made: Grammars) -> None:
    constraint, text = made.compile(("regex", GROWS))(), [1]
    scores, draw = torch.zeros(1, constraint.vocab_size), Random(0)
    with pytest.raises(UserError, match=r"the grammar ends the text: .*too many"):
        for _ in range(500):
            allowed = constraint(torch.tensor([text]), scores)[0].isfinite().nonzero()
            text.append(draw.choice([t for t in allowed.flatten().tolist() if t not in constraint.ends]))


@pytest.mark.parametrize(
    "source", ["root ::= (", "start: (", "start: missing", '{"a": 1}', "r ::= a", "root ::= a", "::="]
)
def test_an_error_of_a_grammar_is_one_line(made: Grammars, source: str) -> None:
    with pytest.raises(APIError, match=r"^the grammar cannot be obeyed: .+$") as refused:
        made.compile(("grammar", source))
    assert len(refused.value.message) < 260


@pytest.mark.parametrize("source", ["start: a\na: a", "start: T\nT: /a+/ & /b+/"])
def test_where_no_text_is_whole_the_reason_is_for_people(made: Grammars, source: str) -> None:
    with pytest.raises(
        APIError, match="cannot be obeyed: nothing may follow, and no text is whole: a rule has no end"
    ):
        made.compile(("grammar", source))


@pytest.mark.parametrize("source", ['root ::= "a" [0-9]+', 'start: "a" /[0-9]+/'])
def test_grammars_come_in_both_notations(made: Grammars, decoder: Decoder, source: str) -> None:
    matcher = made.compile(("grammar", source))().matcher
    ids = decoder.tokenizer.encode("a17", add_special_tokens=False)
    assert matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def test_few_grammars_are_kept(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_GRAMMARS", 2)
    for n in (1, 2, 3):
        made.compile(("regex", f"a{{{n}}}"))
    assert [source for _, source in made._matchers] == ["a{2}", "a{3}"]


IGNORED: dict[str, dict[str, Any]] = {
    "not": {"not": {"type": "string"}},
    "if": {"type": "object", "if": {"required": []}, "then": {"required": ["b"]}},
    "dependentRequired": {"type": "object", "properties": {"a": {}}, "dependentRequired": {"a": ["b"]}},
    "contains": {"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "minProperties": {"type": "object", "minProperties": 2},
}


@pytest.mark.parametrize("word", IGNORED)
def test_a_schema_that_would_be_half_obeyed_is_refused(made: Grammars, word: str) -> None:
    def form(strict: bool) -> Any:
        asked = {"type": "json_schema", "json_schema": {"schema": {"items": IGNORED[word]}, "strict": strict}}
        body = Completion.model_validate({"model": "m", "prompt": "a", "response_format": asked})
        return grammars.requested_form(body)

    with pytest.raises(APIError, match=f"{word}.*; leave it out, or set strict to false"):
        made.compile(form(True))
    if word != "minProperties":
        assert made.compile(form(False))().matcher is not None


def test_json_has_no_endless_white_space(made: Grammars, decoder: Decoder) -> None:
    for text, good in (('{"a": [1, 2], "b": {"c": null}}', True), ('{"a":  1', False), ("{\n", False)):
        ids = decoder.tokenizer.encode(text, add_special_tokens=False)
        assert (made.compile(("json", ""))().matcher.try_consume_tokens(ids) == len(ids)) == good


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

"""Grammars that cost too much are refused, and everyone else is served."""

from __future__ import annotations

import json
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
from studies.serve.local import counting

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

"""Grammars that cost too much are refused, and everyone else is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("xgrammar")

from draftwise import Decoder
from draftwise.serve import grammar as grammars
from draftwise.serve import schemas
from draftwise.serve.compiler import Compiler, compiled
from draftwise.serve.fields import Completion
from draftwise.serve.grammar import Grammars
from draftwise.serve.limits import MEBIBYTE, Limits
from draftwise.serve.refusal import Refusal
from studies.serve.local import counting, serving
from tests.effort import THOROUGH

ENDLESS = 'root ::= a a a\na ::= b b b | ""\nb ::= c c c | ""\nc ::= [a-z]* c | [a-z ]* | c c'
LARGE = json.dumps(
    {"type": "object", "properties": {f"p{i}": {"type": ["number", "null"]} for i in range(1500)}}
)
BRIEF = Limits(grammar_seconds=1.0, grammar_memory=64 * MEBIBYTE)


@pytest.fixture(scope="module")
def decoder(tokenizer: Any) -> Decoder:
    return counting(tokenizer)


@pytest.fixture(scope="module")
def brief(decoder: Decoder) -> Iterator[Grammars]:
    made = Grammars(decoder, BRIEF)
    yield made
    made.close()


def test_what_costs_too_much_is_refused_and_the_next_is_compiled(brief: Grammars) -> None:
    dears = [("grammar", ENDLESS), *([("schema", LARGE)] if THOROUGH else [])]
    for dear in dears:
        with pytest.raises(Refusal, match="takes more than") as refused:
            brief.made(dear)
        assert refused.value.status == 400 and "\n" not in refused.value.message
    assert brief.made(("regex", "[ab]{2}"))().matcher is not None


def test_an_error_of_a_grammar_is_told_without_its_place_in_the_code(brief: Grammars) -> None:
    with pytest.raises(Refusal, match=r"^the grammar cannot be compiled: [A-Z]"):
        brief.made(("grammar", "root ::= ("))


def test_what_comes_from_the_process_is_what_is_compiled_here(brief: Grammars) -> None:
    import xgrammar

    brief._own()
    own = xgrammar.GrammarCompiler(brief._info, max_threads=1)
    for form in (
        ("regex", "[a-f]+"),
        ("schema", '{"type": "array", "items": {"type": "integer"}}'),
        ("json", ""),
    ):
        far, here = brief.made(form)().matcher, xgrammar.GrammarMatcher(compiled(own, *form))
        masks = [xgrammar.allocate_token_bitmask(1, brief._info.vocab_size) for _ in range(2)]
        for matcher, mask in zip((far, here), masks, strict=True):
            matcher.fill_next_token_bitmask(mask)
        assert masks[0].tolist() == masks[1].tolist()


def test_few_grammars_are_kept(brief: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "KEPT", 2)
    for n in (1, 2, 3):
        brief.made(("regex", f"a{{{n}}}"))
    assert [source for _, source in brief._kept] == ["a{2}", "a{3}"]
    monkeypatch.setattr(grammars, "KEPT_BYTES", 1)
    brief.made(("regex", "a{4}"))
    assert [source for _, source in brief._kept] == ["a{4}"]


IGNORED: dict[str, tuple[dict[str, Any], Any]] = {
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]}, 9),
    "not": ({"not": {"type": "string"}}, "a"),
    "if": ({"type": "object", "if": {"required": []}, "then": {"required": ["b"]}}, {}),
    "dependentRequired": (
        {"type": "object", "properties": {"a": {}}, "dependentRequired": {"a": ["b"]}},
        {"a": 1},
    ),
    "dependentSchemas": (
        {"type": "object", "properties": {"a": {}}, "dependentSchemas": {"a": {"required": ["b"]}}},
        {"a": 1},
    ),
    "contains": ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}}, [1]),
    "uniqueItems": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 1]),
}


@pytest.mark.parametrize("word", IGNORED)
def test_a_schema_that_would_be_half_obeyed_is_refused(brief: Grammars, word: str) -> None:
    schema, wrong = IGNORED[word]
    matcher = brief.made(("loose schema", json.dumps(schema)))().matcher
    assert matcher.accept_string(json.dumps(wrong)) and matcher.is_completed()  # else it need not be refused

    def body(strict: bool) -> Completion:
        form = {"type": "json_schema", "json_schema": {"schema": {"items": schema}, "strict": strict}}
        return Completion.model_validate({"model": "m", "prompt": "a", "response_format": form})

    with pytest.raises(Refusal, match=f"'{word}'"):
        grammars.form(body(True))
    assert grammars.form(body(False)) is not None


def test_what_the_compiler_says_it_reads_over_is_refused(brief: Grammars) -> None:
    for schema, said in (
        ({"type": "string", "pattern": "^a*$", "maxLength": 3}, "pattern combined with minLength/maxLength"),
        ({"type": "number", "multipleOf": 2}, "ignoring multipleOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}, "oneOf with overlapping"),
    ):
        brief.made(("schema", '{"type": "integer"}'))
        with pytest.raises(Refusal, match=f"{said}.*; leave it out, or set strict to false"):
            brief.made(("schema", json.dumps(schema)))
        brief.made(("loose schema", json.dumps(schema)))


def test_a_property_may_be_named_like_a_keyword() -> None:
    schema = {
        "properties": {"not": {"enum": [{"if": 1}]}},
        "uniqueItems": False,
    }
    assert schemas.unobeyed(schema) == ""


def test_a_process_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Refusal, match="does not start"):
        Compiler("{}", seconds=1, memory=MEBIBYTE).compile("json", "")


def test_json_has_no_endless_white_space(brief: Grammars) -> None:
    matcher = brief.made(("json", ""))().matcher
    assert matcher.accept_string('{"a": [1, 2], "b": {"c": null}}')
    matcher.reset()
    assert not matcher.accept_string('{"a":  1')


def test_others_are_served_while_a_grammar_is_compiled(decoder: Decoder) -> None:
    import httpx

    with serving(decoder, "m", grammar_seconds=2.0) as (url, service), ThreadPoolExecutor(2) as pool:

        def ask(**more: Any) -> httpx.Response:
            body = {"model": "m", "prompt": "ab", "max_tokens": 5, "temperature": 0.0} | more
            return httpx.post(f"{url}/v1/completions", json=body, timeout=None, trust_env=False)

        alone = ask().json()["choices"][0]["text"]
        dear = pool.submit(ask, grammar=ENDLESS)
        while not service.compiled:
            assert not dear.done()
        served = 0
        while not dear.done():
            assert ask().json()["choices"][0]["text"] == alone
            served += 1
        assert served and dear.result().status_code == 400
        assert "takes more than" in dear.result().json()["error"]["message"]

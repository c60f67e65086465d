"""Grammars that cost too much, or grow, are refused, and everyone else is served."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from random import Random
from threading import Event as Flag
from types import SimpleNamespace
from typing import Any

import httpx
import llguidance
import pytest
import torch

from draftwise import Decoder
from draftwise.core.roles import TokenMask
from draftwise.errors import UserError
from draftwise.serve import grammar as grammars
from draftwise.serve import sandbox, service
from draftwise.serve.bodies import Completion
from draftwise.serve.errors import APIError
from draftwise.serve.grammar import MAX_MASKS, Constraint, Grammars, read_vocabulary
from draftwise.serve.sandbox import Connection, Sandbox
from studies.serve.local import counting, resident
from tests.effort import THOROUGH

from .conftest import MODEL, Served, until, vocabulary

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


# -- a grammar as a constraint: asked about places in any order, it always says the same -----------------

LETTERS = [*'abcdefghij{}[]":, 0123456789', "name", '":', "ab", "<end>"]
END = len(LETTERS) - 1
GRAMMAR = 'start: "{" item ("," item)* "}"\nitem: "name" ":" /[a-c]+/ | "ab" /[0-9]/'
NOT_A = "start: T\nT: ~/a+/"
PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def compiled() -> Any:
    return llguidance.LLMatcher(vocabulary(LETTERS), GRAMMAR)


def fresh(compiled: Any) -> Constraint:
    return Constraint(compiled, len(LETTERS), {END})


def free(constraint: Constraint, text: list[int], ahead: list[int]) -> list[int]:
    row = constraint.mask(text, len(PROMPT), ahead, torch.zeros(len(LETTERS) + 9))
    return [token for token, value in enumerate(row.tolist()) if value > -inf]


def walk(compiled: Any, rng: Random, n: int) -> list[int]:
    """An answer, drawn."""
    constraint, text = fresh(compiled), list(PROMPT)
    while len(text) < len(PROMPT) + n and text[-1] != END:
        text.append(rng.choice(free(constraint, text, [])))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("seed", range(3))
def test_places_come_in_any_order(compiled: Any, seed: int) -> None:
    """Drafts that are rejected, places of before, and calls as a processor in between."""
    rng = Random(seed)
    answer, other = walk(compiled, rng, 60), walk(compiled, rng, 60)
    truth = [free(fresh(compiled), PROMPT, answer[:n]) for n in range(len(answer) + 1)]
    constraint = fresh(compiled)
    assert isinstance(constraint, TokenMask)
    for n in range(len(answer)):
        text = [*PROMPT, *answer[:n]]
        for _ in range(3):
            at = rng.randrange(n + 1)  # as a recorder may ask
            ahead = (answer[at:] if rng.random() < 0.5 else other)[: rng.randrange(5)]
            said = free(constraint, text[: len(PROMPT) + at], ahead)
            if ahead == answer[at : at + len(ahead)]:
                assert said == truth[at + len(ahead)]
        assert constraint.allows(text, len(PROMPT), [], answer[n])
        wrong = next(token for token in range(len(LETTERS)) if token not in truth[n])
        assert not constraint.allows(text, len(PROMPT), [], wrong)
        only = constraint.only(text, len(PROMPT), [])
        assert only == (truth[n][0] if len(truth[n]) == 1 else -1)
        scores = constraint(torch.tensor([text]), torch.zeros(1, len(LETTERS) + 5))
        assert [t for t, value in enumerate(scores[0].tolist()) if value > -inf] == truth[n]
        assert len(constraint.masks) <= MAX_MASKS


def test_after_its_end_anything_goes(compiled: Any) -> None:
    constraint, end = fresh(compiled), [LETTERS.index(c) for c in ("{", "ab", "0", "}")]
    text = [*PROMPT, *end, END]
    for n in range(len(PROMPT), len(text) + 1):
        scores = constraint(torch.tensor([text[:n]]), torch.zeros(1, len(LETTERS)))
    assert (scores == 0).all() and constraint.only(text, len(PROMPT), []) == -1
    assert constraint.allows(text, len(PROMPT), [], 5) and free(constraint, text, [4, 4]) != []
    constraint(torch.tensor([[*text, 5, 6]]), torch.zeros(1, len(LETTERS)))
    assert constraint.only(text[:-1], len(PROMPT), []) == END, "it was taken back"


def test_a_committed_token_that_does_not_fit_is_an_error(compiled: Any) -> None:
    constraint = fresh(compiled)
    constraint(torch.tensor([PROMPT]), torch.zeros(1, len(LETTERS)))
    with pytest.raises(ValueError, match="token 0 does not fit"):
        constraint(torch.tensor([[*PROMPT, 0]]), torch.zeros(1, len(LETTERS)))


def test_a_grammar_that_takes_too_long_ends_its_text(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.serve.grammar.SECONDS_PER_TOKEN", -1.0)
    constraint = fresh(compiled)
    with pytest.raises(UserError, match="a token: make it simpler"):
        constraint(torch.tensor([PROMPT]), torch.zeros(1, len(LETTERS)))


def test_what_is_no_text_is_not_allowed_where_a_grammar_allows_all_but_something() -> None:
    tokens = vocabulary(["<call>", "a", "b", "<end>"], special=[0])
    for source, text, allowed in (
        (NOT_A, [1], [1, 2]),
        (NOT_A, [1, 2], [1, 2, 3]),
        ("start: <[0]>", [0], [3]),
    ):
        constraint = Constraint(llguidance.LLMatcher(tokens, source), 4, {3}, [0, 3])
        for n in range(len(text) + 1):
            scores = constraint(torch.tensor([[1, *text[:n]]]), torch.zeros(1, 4))
        assert scores[0].isfinite().nonzero().flatten().tolist() == allowed


class Fragile:
    """A matcher that allows all tokens, and is broken by token 7 as llguidance by one that is too much."""

    broken = False

    def deep_copy(self) -> Fragile:
        return Fragile()

    def try_consume_tokens(self, tokens: list[int]) -> int:
        self.broken |= 7 in tokens
        return 0 if self.broken else len(tokens)

    def rollback(self, n: int) -> None:
        assert not self.broken

    def unsafe_compute_mask_ptr(self, at: int, size: int) -> None:
        ctypes.memset(at, 0 if self.broken else 255, size)

    def is_error(self) -> bool:
        return self.broken

    def get_error(self) -> str:
        return "Too many items"


def test_a_drafted_token_that_is_too_much_costs_no_text() -> None:
    constraint, scores = Constraint(Fragile(), 9, {8}), torch.zeros(1, 9)
    constraint(torch.tensor([[1]]), scores)
    assert not constraint.allows([1, 2], 1, [3], 7)
    assert constraint(torch.tensor([[1, 2, 4]]), scores)[0].isfinite().all()
    with pytest.raises(UserError, match="the grammar ends the text: Too many items"):
        constraint(torch.tensor([[1, 2, 4, 7]]), scores)


# -- it is compiled in a process that ends at its bounds, and with its client ----------------------------


NAMES = [{"$ref": f"#/$defs/a{n + 1}", "type": "object"} for n in range(40)]
DEFS = {f"a{n}": {"patternProperties": {"^a": name, "^b": name}} for n, name in enumerate(NAMES)}
SCHEMA = {"$ref": "#/$defs/a0", "$defs": DEFS | {"a40": {"type": "string", "pattern": "a+"}}}
GROWING = ("tools", f"start: %json {json.dumps(SCHEMA)}")  # nothing looks into it before it is compiled
SMALL = ("regex", "[ab]{2}")


@pytest.fixture(scope="module")
def tokens(tokenizer: Any) -> Any:
    return read_vocabulary(tokenizer, len(tokenizer), None)


@pytest.fixture(scope="module")
def endless(tokens: Any) -> Iterator[Sandbox]:
    """One whose processes end with their clients alone."""
    made = Sandbox(tokens, seconds=1e6, memory=1 << 40)
    yield made
    made.close()


def children(sandbox: Sandbox) -> list[str]:
    """The processes that compile now."""
    assert sandbox._process is not None
    pid = sandbox._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("bounds", [{"memory": 16 << 20}, {"seconds": 0.05}], ids=str)
def test_what_grows_is_refused_and_the_next_is_compiled(tokens: Any, bounds: dict[str, Any]) -> None:
    sandbox = Sandbox(tokens, **bounds)
    with pytest.raises(ValueError, match=r"it grows beyond .* while it is compiled: make it smaller"):
        sandbox.compile(GROWING, Connection())
    assert "[ab]{2}" in sandbox.compile(SMALL, Connection())
    sandbox.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")
def test_a_process_ends_with_its_connection(endless: Sandbox) -> None:
    endless.compile(SMALL, Connection())
    until(lambda: not children(endless))
    connection = Connection()
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(endless.compile, GROWING, connection)
        until(lambda: children(endless))
        connection.close()
        with pytest.raises(ValueError, match="it grows"):
            compiling.result()
    until(lambda: not children(endless))


def test_a_process_that_cannot_start_is_no_fault_of_a_grammar() -> None:
    nothing = SimpleNamespace(vocab_size=0, eos_tokens=[])
    with pytest.raises(RuntimeError, match="did not start"):
        Sandbox(nothing).compile(SMALL, Connection())


def test_one_that_ended_is_started_again(tokens: Any) -> None:
    sandbox = Sandbox(tokens)
    sandbox.compile(SMALL, Connection())
    control = sandbox._control
    assert sandbox._process is not None and control is not None
    sandbox._process.kill()
    sandbox._process.wait()
    assert sandbox.compile(SMALL, Connection())
    assert control.fileno() == -1, "nothing of it stays open"
    sandbox.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the folder is always searched before")
def test_modules_of_the_folder_are_not_its_own(
    tokens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    sandbox = Sandbox(tokens)
    assert sandbox.compile(SMALL, Connection())
    sandbox.close()


def ask(server: Served, client: httpx.Client, grammar: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"model": MODEL, "prompt": "ab", "max_tokens": 4, **grammar})


def test_a_client_that_leaves_ends_its_process_and_frees_its_turn(
    serve: Any, tokenizer: Any, endless: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PER_CLIENT", 1)
    server = serve(counting(tokenizer))
    server.service.parser.grammars.sandbox = endless
    schema = {"type": "json_schema", "json_schema": {"schema": {}}}
    monkeypatch.setattr(
        server.service.parser, "parse_form", lambda body: GROWING if body.response_format else SMALL
    )
    endless.compile(SMALL, Connection())
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.Client(base_url=server.url, timeout=0.5, trust_env=False) as bad,
    ):
        ask(server, bad, {"response_format": schema})
    assert ask(server, server.client, {}).status_code == 200
    until(lambda: not children(endless))


def test_a_client_holds_up_no_other(serve: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, free, bad_forms = serve(counting(tokenizer)), Flag(), list[Any]()
    grammars, made = server.service.parser.grammars, Grammars.compile

    def wait(form: Any, connection: Any) -> Any:
        if form != SMALL:
            bad_forms.append(form)
            free.wait()
        return made(grammars, SMALL, connection)

    monkeypatch.setattr(grammars, "compile", wait)
    local, many = httpx.HTTPTransport(local_address="127.0.0.2"), service.PER_CLIENT + service.COMPILERS
    with (
        ThreadPoolExecutor(many) as pool,
        httpx.Client(base_url=server.url, timeout=None, transport=local) as other,
    ):
        bad = [pool.submit(ask, server, server.client, {"regex": "b{2}"}) for _ in range(many)]
        until(lambda: len(bad_forms) == service.PER_CLIENT)
        assert ask(server, other, {"regex": SMALL[1]}).status_code == 200
        free.set()
        assert {one.result().status_code for one in bad} == {200}


def test_a_tokenizer_that_cannot_be_read_is_a_clear_refusal(serve: Any) -> None:
    server = serve()
    answer = ask(server, server.client, {"regex": "a"})
    assert answer.status_code == 400 and "this model's tokenizer cannot be read" in answer.text

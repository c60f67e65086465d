"""Every error names what is wrong, and what to do instead."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest
import torch
from pydantic import BaseModel, ValidationError

from draftwise.serve.bodies import (
    ALIASES,
    IGNORED,
    REFUSED,
    Chat,
    Completion,
    Message,
    Part,
    Reasoning,
    Responses,
    StreamOptions,
    TextSettings,
    ToolCall,
)
from draftwise.serve.errors import APIError
from draftwise.serve.requests import MARGIN, bar_sequences, check_length
from draftwise.serve.run import names_of
from studies.serve import fuzz as study
from tests.cli.conftest import Letters
from tests.effort import THOROUGH
from tests.tiny_tokenizers import MAKERS

from .conftest import MODEL, Served, line, simulated
from .test_routes import events

COMPLETION, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
GOOD: dict[str, dict[str, Any]] = {
    COMPLETION: {"prompt": "ab"},
    CHAT: {"messages": [{"role": "user", "content": "ab"}]},
    RESPONSES: {"input": "ab"},
}
LENGTHS: dict[str, dict[str, Any]] = {COMPLETION: {"max_tokens": 20}, CHAT: {}, RESPONSES: {}}
NAN = float("nan")
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
HALF_CALL = CALL | {"arguments": "{"}
TOOL = {"type": "function", "name": "f", "parameters": {"default": [NAN]}}


def schema(schema: Any, **more: Any) -> dict[str, Any]:
    """The fields of a chat for an answer by a schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema} | more}}


def form(**more: Any) -> dict[str, Any]:
    """The same of `/v1/responses`."""
    return {"text": {"format": {"type": "json_schema", "name": "a"} | more}}


WRONG: list[tuple[str, dict[str, Any], str, str | None]] = [
    (RESPONSES, {"metadata": {"a": NAN}}, "metadata={'a': nan}: JSON has no NaN", "metadata"),
    (RESPONSES, {"tools": [TOOL]}, "tools.0.parameters={'default': [nan]}", "tools"),
    (RESPONSES, form(schema={"minimum": -float("inf")}), "text.format.schema={'minimum': -inf}", "text"),
    (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}, "input has no message: give one", "input"),
    (RESPONSES, {"input": [CALL] * 129}, "input: tool_calls: List should have at most 128 items", "input"),
    (RESPONSES, {"input": [HALF_CALL]}, "the arguments '{' are no JSON", "input"),
    (RESPONSES, {"input": []}, "at least 1 item", "input"),
    (RESPONSES, form(), "text.format.schema is missing: give it", "text"),
    (RESPONSES, form(schema={"minItems": "x"}), "the schema cannot be obeyed", "text"),
    (CHAT, {"chat_template_kwargs": {"a": NAN}}, "chat_template_kwargs={'a': nan}", "chat_template_kwargs"),
    (CHAT, schema({"patternProperties": 5}), "'patternProperties', got 5; leave it out", "response_format"),
    (CHAT, schema({"minItems": "x"}, strict=False), "the schema cannot be obeyed", "response_format"),
    (CHAT, schema({"const": "x" * 70_000}), "the schema has 70013 characters", "response_format"),
    (CHAT, schema(True), "response_format.json_schema.schema=True: ", "response_format"),
    (COMPLETION, {"regex": "("}, "error: unclosed group", "regex"),
    (COMPLETION, {"stop": 5}, "stop=5: ", "stop"),
    (COMPLETION, {"stop": ["a", None]}, "stop.1=None: ", "stop"),
    (COMPLETION, {"prompt": [1, "a"]}, "prompt.1='a': input should be a valid integer", "prompt"),
    (COMPLETION, {"prompt": ["a", 1]}, "prompt.1=1: input should be a valid string", "prompt"),
    (COMPLETION, {"prompt": [[1], 2]}, "prompt.1=2: ", "prompt"),
    (COMPLETION, {"temperature": -1}, "temperature=-1", None),
    (COMPLETION, {"top_p": 0}, "top_p=0", None),
    (COMPLETION, {"min_p": 2}, "min_p=2", None),
    (COMPLETION, {"top_k": -2}, "top_k=-2", None),
    (COMPLETION, {"n": 0}, "n=0", None),
    (COMPLETION, {"n": 100}, "100 texts", None),
    (COMPLETION, {"max_tokens": -3}, "max_tokens=-3", None),
    (COMPLETION, {"max_tokens": True}, "max_tokens=True", None),
    (COMPLETION, {"max_tokens": 0}, "max_tokens=0", None),
    (COMPLETION, {"max_tokens": 399}, "window has 400", None),
    (COMPLETION, {"prompt": "a" * 500}, "500 tokens", None),
    (COMPLETION, {"prompt": ""}, "prompt is empty", None),
    (COMPLETION, {"prompt": ["ab", ""]}, "prompt is empty", None),
    (COMPLETION, {"prompt": [1, 99]}, "99", None),
    (COMPLETION, {"prompt": None}, "prompt", None),
    (COMPLETION, {"prompt": "\ud800"}, "half a character", None),
    (COMPLETION, {"stop": ""}, "stop string is empty", None),
    (COMPLETION, {"stop": ["x"] * 17}, "stop", None),
    (COMPLETION, {"logprobs": 21}, "logprobs=21", None),
    (COMPLETION, {"logit_bias": {"a": 1}}, "'a'", None),
    (COMPLETION, {"logit_bias": {"99": 1}}, "'99'", None),
    (COMPLETION, {"logit_bias": {"1": 101}}, "101", None),
    (COMPLETION, {"seed": 1 << 70}, "seed=", None),
    (COMPLETION, {"stream_options": {"include_usage": True}}, "stream_options", None),
    (COMPLETION, {"stream": "yes"}, "stream='yes'", None),
    (COMPLETION, {"best_of": 4}, "best_of=4", None),
    (COMPLETION, {"suffix": "x"}, "suffix='x'", None),
    (COMPLETION, {"model": "other"}, "'other'", None),
    (COMPLETION, {"colour": 1}, "'colour'", None),
    (COMPLETION, {"Colour": 1}, "'Colour'", None),
    (COMPLETION, {"int": 1}, "'int'", None),
    (COMPLETION, {str(k): k for k in range(100)}, "at most 64", None),
    (COMPLETION, {"prompt": [None] * 100_000}, "prompt", None),
    (COMPLETION, {"prompt": ["ab"] * 3, "n": 128}, "384 texts", None),
    (COMPLETION, {"stop": "x" * 5000}, "4096", None),
    (COMPLETION, {"speculative": {"policy": "disco?model=/etc/passwd"}}, "'disco", None),
    (COMPLETION, {"speculative": {"policy": "static-4?drafter=other"}}, "other", None),
    (COMPLETION, {"speculative": {"policy": "static-4?drafter=good", "drafters": ["bad"]}}, "good", None),
    (COMPLETION, {"speculative": {"policy": "static-1000"}}, "at most 128", None),
    (COMPLETION, {"speculative": {"policy": "static-4?stop=gain"}}, "gain", None),
    (COMPLETION, {"speculative": {"drafters": ["nobody"]}}, "'nobody'", None),
    (COMPLETION, {"speculative": {"max_length": -1}}, "max_length=-1", None),
    (COMPLETION, {"grammar": "root ::= (", "regex": "a"}, "exclude", None),
    (COMPLETION, {"response_format": {"type": "json_schema"}}, "schema", None),
    (CHAT, {"messages": []}, "messages", None),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}, "'king'", None),
    (CHAT, {"messages": [{"role": "user"}]}, "content", None),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, "type", None),
    (CHAT, {"tools": [{"type": "function"}]}, "tools", None),
    (CHAT, {"top_logprobs": 2}, "logprobs", None),
    (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens=0", None),
    (CHAT, {"prompt": "a"}, "prompt='a' is not done here", None),
    (COMPLETION, {"min_tokens": 30}, "min_tokens=30: the text has 20 tokens at most", None),
    (COMPLETION, {"min_tokens": 2, "stop": "a"}, "min_tokens and stop exclude each other", None),
    (COMPLETION, {"min_tokens": 2, "allowed_token_ids": [1]}, "allowed_token_ids excludes min_tokens", None),
    (COMPLETION, {"stop_token_ids": [99]}, "stop_token_ids has 99: give token ids from 0 to 27", None),
    (COMPLETION, {"allowed_token_ids": [99]}, "allowed_token_ids has 99", None),
    (COMPLETION, {"bad_words": ["\ud800"]}, "unable to parse raw data as a unicode string", None),
    (
        COMPLETION,
        {"structured_outputs": {"structural_tag": "x"}},
        "structured_outputs.structural_tag='x'",
        None,
    ),
    (COMPLETION, {"structured_outputs": {"choice": [1]}}, "structured_outputs.choice: give a list", None),
    (COMPLETION, {"structured_outputs": {"json": "{"}}, "the schema '{' is no JSON", None),
    (COMPLETION, {"structured_outputs": {"regex": "a"}, "regex": "b"}, "exclude each other", None),
    (CHAT, {"chat_template_kwargs": {"tokenize": False}}, "'tokenize' is no variable of the template", None),
    (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}, "'chat_template' is no variable", None),
    (CHAT, {"functions": [{"name": "f"}]}, "is not done here: give tools", None),
]


LONG = "x" * 20_000
LOUD: list[tuple[str, dict[str, Any]]] = [
    (COMPLETION, {LONG: 1}),
    (COMPLETION, {"regex": f"({LONG}"}),
    (COMPLETION, {"speculative": {"policy": LONG}}),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": LONG}}}),
    (CHAT, schema({LONG: {"type": LONG}, "type": LONG})),
    (RESPONSES, {"input": [CALL | {"arguments": LONG}]}),
]


@pytest.mark.parametrize(("path", "change"), LOUD, ids=lambda value: str(value)[:50])
def test_an_error_has_a_short_piece_of_what_was_sent(
    server: Served, path: str, change: dict[str, Any]
) -> None:
    answer = server.client.post(path, json={"model": MODEL} | GOOD[path] | change)
    assert answer.status_code == 400 and len(answer.content) < 700, answer.text[:1000]


@pytest.mark.parametrize(("path", "change", "said", "param"), WRONG, ids=lambda value: str(value)[:50])
def test_what_is_wrong_is_named(
    server: Served, sandbox: Any, path: str, change: dict[str, Any], said: str, param: str | None
) -> None:
    server.service.parser.grammars.sandbox = sandbox
    body = json.dumps({"model": MODEL} | LENGTHS[path] | GOOD[path] | change)
    answer = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 404 if "model" in change else 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert said in error["message"] and param in (None, error["param"])
    assert "\n" not in error["message"] and len(error["message"]) < 400


@pytest.fixture(scope="module")
def sandbox(tokenizer: Any) -> Any:
    from draftwise.serve.grammar import read_vocabulary
    from draftwise.serve.sandbox import Sandbox

    return Sandbox(read_vocabulary(tokenizer, len(tokenizer), None))


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        # All that a page of another origin can send unasked.
        (b"{}", "text/plain", "send it as Content-Type: application/json"),
        (b"{}", None, "send it as Content-Type: application/json"),
        (b"a=b", "application/x-www-form-urlencoded", "send it as Content-Type: application/json"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "application/json", "more than 4300 digits: give a shorter one"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "application/json", "nested too deeply: send fewer levels"),
        (b'{"a": "\xff"}', "application/json", "not UTF-8: repair its encoding"),
        (b"[1]", "application/json", "the body=[1]: "),
        (b"", "application/json", ""),
        (b"{", "application/json", "not JSON"),
        (b"null", "application/json", ""),
        (b"[" * 100_000, "application/json", "nested too deeply"),
        (b'{"model": NaN}', "application/json", "prompt is missing"),
        (b'{"prompt": "ab", "temperature": Infinity}', "application/json", "temperature=inf"),
        (b'{"prompt": "ab", "temperature": 1e999}', "application/json", "temperature=inf"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_body_that_cannot_be_read(server: Served, body: bytes, kind: str | None, said: str) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = server.client.post(COMPLETION, content=body, headers=headers)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


MANY = {str(k): None for k in range(100_000)}


@pytest.mark.parametrize("field", [{"logit_bias": MANY}, {"documents": [MANY]}], ids=["object", "in a list"])
def test_the_errors_of_a_body_are_few(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="100000 fields: give at most 1024") as refused:
        Chat.model_validate(GOOD[CHAT] | field)
    assert refused.value.error_count() == 1


@pytest.mark.parametrize("host", ["127.0.0.2", "LocalHost", "::1", "0:0:0:0:0:0:0:1"])
def test_a_server_is_known_by_its_own_address(host: str) -> None:
    names = names_of(host)
    assert (f"[{host}]" if ":" in host else host).lower() in names
    assert {"localhost", "127.0.0.1", "[::1]"} <= set(names)


def test_a_server_for_others_is_known_by_any_name() -> None:
    assert not names_of("0.0.0.0") and not names_of("10.1.2.3")


def test_white_space_is_a_prompt(server: Served) -> None:
    assert server.ask("/tokenize", prompt=" ")["tokens"] == [26]
    assert server.complete(" ", max_tokens=3)["choices"][0]["text"] == "abc"


# -- prompts that are too long: refused before all of them is read, and others never ---------------------

TEXT = "ab" * 1_000_000
SAID = [{"role": "user", "content": "a" * 50_000}] * 40
TOO_LONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": TEXT}),
    ("/v1/completions", {"prompt": ["ab", TEXT]}),
    ("/v1/completions", {"prompt": [1] * 200_000}),
    ("/v1/chat/completions", {"messages": SAID}),
    ("/v1/responses", {"input": TEXT}),
    ("/tokenize", {"prompt": TEXT}),
    ("/tokenize", {"messages": SAID}),
    ("/detokenize", {"tokens": [1] * 200_000}),
]


class Counting(Letters):
    """Keeps the lengths of what it reads and writes."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self, text: str, **more: Any) -> dict[str, list[int]]:
        self.read.append(len(text))
        return super().__call__(text, **more)

    def decode(self, tokens: Any, **more: Any) -> str:
        self.read.append(len(tokens))
        return super().decode(tokens, **more)


def test_no_more_is_read_than_the_window_holds(serve: Any) -> None:
    decoder, tokenizer = simulated(), Counting()
    decoder.tokenizer = tokenizer
    server = serve(decoder)
    for path, body in TOO_LONG:
        answer = server.client.post(path, json={"model": MODEL} | body)
        assert answer.status_code == 400, path
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded" and "more than" in error["message"]
        assert error["param"] == (
            "input" if "input" in body else "messages" if "messages" in body else "prompt"
        )
    assert max(tokenizer.read) < 20_000
    assert server.complete("ab")["usage"]["prompt_tokens"] == 2
    assert server.ask("/tokenize", prompt="a" * 1000)["count"] == 1000  # more than the window of 400


HARD = [
    f"the {' ' * 60_000}fox </s>{' ' * 60_000}",
    "\u16a0" * 120_000,  # not in any vocabulary
    f"fox {'x' * 120_000} dog",  # one word
    "def " * 200 + "\n" * 90_000 + "x",
    "<|im_start|>" * 900,
]


@pytest.mark.parametrize("name", MAKERS)
def test_what_fits_is_not_refused(name: str) -> None:
    tokenizer, few = MAKERS[name](), 0
    for text in HARD:
        n = len(tokenizer(text)["input_ids"])
        check_length(tokenizer, text, n)
        few += len(text) > 4 * (n + MARGIN)  # so that the beginning was read
    assert few or name in ("byte-level", "gemma", "llama", "fallback-metaspace")
    with pytest.raises(APIError, match="more than 9 tokens"):
        check_length(tokenizer, "The quick brown fox. " * 5000, 9)


# -- bodies that are no requests -------------------------------------------------------------------------


def test_no_body_breaks_the_server() -> None:
    n = 5000 if THOROUGH else 60
    decoder = None if THOROUGH else simulated()
    counts, errors = study.fuzz(n, seed=1, grammars=THOROUGH, decoder=decoder)
    assert not errors and counts["open"] == 0
    assert (
        sum(counts["answers"].values()) == n
        and counts["answers"]["400"] > n / 2 > counts["answers"]["200"] > 0
    )


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [(500, b"", "500"), (400, b"no", "shape"), (400, b'{"error": {"message": "a\\nb"}}', "one line")],
)
def test_a_wrong_answer_would_be_noticed(status: int, content: bytes, said: str) -> None:
    assert said in study.wrong(httpx.Response(status, content=content))


# -- fields of other servers: obeyed, ignored since they change no text, or refused by name ---------------


ROUTES: dict[str, type[BaseModel]] = {COMPLETION: Completion, CHAT: Chat, RESPONSES: Responses}
SERVE = Path(__file__).parents[2] / "docs/reference/requests.md"


def classes(name: str, own: Any) -> list[str]:
    """The classes that a field of a route belongs to."""
    obeyed = name in own.model_fields or name in ALIASES
    there = {"obeyed": obeyed, "ignored": name in IGNORED, "refused": name in REFUSED}
    # A name may be one route's own, as `prompt` is.
    return ["obeyed"] if obeyed else [kind for kind, found in there.items() if found]


def params(module: str) -> Any:
    """The typed parameters of a request in OpenAI's library, streamed or not."""
    types = pytest.importorskip(f"openai.types.{module}")
    name = "ResponseCreateParams" if "responses" in module else "CompletionCreateParams"
    whole, streamed = (getattr(types, name + kind) for kind in ("NonStreaming", "Streaming"))
    return get_type_hints(whole) | get_type_hints(streamed)


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("completion_create_params", COMPLETION),
        ("chat.completion_create_params", CHAT),
        ("responses.response_create_params", RESPONSES),
    ],
)
def test_each_field_of_openais_library_is_in_one_class(module: str, path: str) -> None:
    found = {name: classes(name, ROUTES[path]) for name in params(module)}
    assert len(found) > 15 and {name: kinds for name, kinds in found.items() if len(kinds) != 1} == {}


def test_each_inner_field_of_openais_library_is_known() -> None:
    pytest.importorskip("openai")
    from openai.types import chat, responses, shared_params

    pairs: list[tuple[Any, type[BaseModel]]] = [
        (chat.ChatCompletionStreamOptionsParam, StreamOptions),
        (chat.ChatCompletionContentPartTextParam, Part),
        (chat.ChatCompletionAssistantMessageParam, Message),
        (chat.ChatCompletionToolMessageParam, Message),
        (chat.ChatCompletionMessageFunctionToolCallParam, ToolCall),
        (shared_params.Reasoning, Reasoning),
        (responses.ResponseTextConfigParam, TextSettings),
    ]
    for theirs, ours in pairs:
        assert get_type_hints(theirs).keys() <= ours.model_fields.keys()


def test_the_documentation_has_every_name_in_its_table() -> None:
    tables = re.findall(r"\| (obeyed|ignored|refused) \| \|\n(.*?)\n\n", SERVE.read_text(), flags=re.DOTALL)
    page = {kind: set(re.findall(r"`(\w+)`", rows)) for kind, rows in tables}
    assert {name for own in ROUTES.values() for name in {*own.model_fields, *ALIASES}} <= page[
        "obeyed"
    ] | IGNORED
    # `prompt` and `echo` are fields of another route, `metadata` is obeyed by one.
    assert page["ignored"] == IGNORED and page["refused"] == REFUSED.keys()
    assert not IGNORED & REFUSED.keys()


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_ignored_changes_nothing(server: Served, path: str) -> None:
    more = {name: ["any", {"thing": 1}] for name in IGNORED if name not in ROUTES[path].model_fields}
    body = GOOD[path] | {"model": MODEL, "temperature": 0.0}
    plain, other = (server.client.post(path, json=one).json() for one in (body, body | more))
    for answer in (plain, other):  # what is different each time
        for name in ("id", "created", "created_at", "metrics", "output"):
            answer.pop(name, None) if name != "output" else [one.pop("id") for one in answer.get(name, ())]
    assert plain == other and plain.get("choices", plain.get("output"))


@pytest.mark.parametrize("path", ROUTES)
def test_what_cannot_be_done_is_refused_by_name(server: Served, path: str) -> None:
    mine = ROUTES[path].model_fields
    names = {name: values for name, values in REFUSED.items() if name not in mine}
    nothing = {name: (values or (None,))[0] for name, values in names.items()}
    body = GOOD[path] | {"model": MODEL, "temperature": 0.0}
    assert len(nothing) < 64 and server.client.post(path, json=body | nothing).status_code == 200
    for name in names:
        answer = server.client.post(path, json=body | {name: "something else"})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name
        assert f"{name}='something else' is not done here" in answer.json()["error"]["message"]


def test_every_piece_of_a_stream_has_the_usage(server: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, prompt in ((COMPLETION, {"prompt": "ab"}), (CHAT, GOOD[CHAT])):
        chunks = events(server, path, **prompt, max_tokens=20, stream_options=options)
        written = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"]]
        assert len(written) >= len(chunks) - 1 > 4 and written == sorted(written) and written[-1] == 20
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks if chunk["usage"]} == {2}


@pytest.mark.parametrize(
    ("more", "text", "reason"),
    [
        ({"stop_token_ids": [9]}, "cdefghi", "stop"),
        ({"stop_token_ids": [9], "include_stop_str_in_output": True}, "cdefghij", "stop"),
        ({"stop": "hi", "include_stop_str_in_output": True}, "cdefghi", "stop"),
        ({"stop": ["hij", "h"], "include_stop_str_in_output": True}, "cdefgh", "stop"),
        ({"n_predict": 4}, "cdef", "length"),
        ({"model": None, "max_tokens": 4, "seed": -1}, "cdef", "length"),
    ],
)
def test_where_a_text_ends(server: Served, more: dict[str, Any], text: str, reason: str) -> None:
    body = {"model": MODEL, "prompt": "ab", "temperature": 0.0, "max_tokens": 20} | more
    body = {name: value for name, value in body.items() if name != "max_tokens" or "n_predict" not in more}
    (choice,) = server.client.post(COMPLETION, json=body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, reason)
    streamed = events(server, COMPLETION, **{name: one for name, one in body.items() if name != "model"})
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text == line("b", len(text))


def test_a_seed_of_minus_one_is_any(server: Served) -> None:
    said = {server.complete(temperature=6.0, seed=-1, max_tokens=30)["choices"][0]["text"] for _ in range(3)}
    assert len(said) == 3


def test_words_that_are_barred() -> None:
    bars = bar_sequences([[5], [1, 2], [2, 1, 3]])

    def barred_after(*text: int) -> list[int]:
        scores = bars(torch.tensor([text], dtype=torch.long), torch.zeros(1, 6))
        return [token for token, score in enumerate(scores[0].tolist()) if score < 0]

    assert barred_after() == barred_after(2) == [5]
    assert barred_after(0, 1) == barred_after(1) == [2, 5]
    assert barred_after(0, 2, 1) == [2, 3, 5] and barred_after(2, 1, 0) == [5]

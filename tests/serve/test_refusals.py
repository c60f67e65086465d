"""Every error names what is wrong, and what to do instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftwise.serve.run import names_of

from .conftest import MODEL, Served

COMPLETION, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
GOOD: dict[str, dict[str, Any]] = {
    COMPLETION: {"prompt": "ab"},
    CHAT: {"messages": [{"role": "user", "content": "ab"}]},
    RESPONSES: {"input": "ab"},
}
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


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (RESPONSES, {"metadata": {"a": NAN}}, "metadata={'a': nan}: JSON has no NaN", "metadata"),
    (RESPONSES, {"metadata": {"a": NAN}, "stream": True}, "metadata={'a': nan}", "metadata"),
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
    (CHAT, schema({"patternProperties": 5}, strict=False), "patternProperties", "response_format"),
    (CHAT, schema({"minItems": "x"}, strict=False), "the schema cannot be obeyed", "response_format"),
    (CHAT, schema({"const": "x" * 70_000}), "the schema has 70013 characters", "response_format"),
    (CHAT, schema(True), "response_format.json_schema.schema=True: ", "response_format"),
    (COMPLETION, {"regex": "("}, "error: unclosed group", "regex"),
    (COMPLETION, {"stop": 5}, "stop=5: ", "stop"),
    (COMPLETION, {"stop": ["a", None]}, "stop.1=None: ", "stop"),
    (COMPLETION, {"prompt": [1, "a"]}, "prompt.1='a': input should be a valid integer", "prompt"),
    (COMPLETION, {"prompt": ["a", 1]}, "prompt.1=1: input should be a valid string", "prompt"),
    (COMPLETION, {"prompt": [[1], 2]}, "prompt.1=2: ", "prompt"),
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
    server: Served, sandbox: Any, path: str, change: dict[str, Any], said: str, param: str
) -> None:
    server.service.parser.grammars.sandbox = sandbox
    body = json.dumps({"model": MODEL} | GOOD[path] | change)
    answer = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert said in error["message"] and error["param"] == param
    assert "\n" not in error["message"] and len(error["message"]) < 400


@pytest.fixture(scope="module")
def sandbox(tokenizer: Any) -> Any:
    pytest.importorskip("llguidance")
    from draftwise.serve.grammar import read_vocabulary
    from draftwise.serve.sandbox import Sandbox

    return Sandbox(read_vocabulary(tokenizer, len(tokenizer), None))


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"{}", "text/plain", "send it as Content-Type: application/json"),
        (b"a=b", "application/x-www-form-urlencoded", "send it as Content-Type: application/json"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "application/json", "more than 4300 digits: give a shorter one"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "application/json", "nested too deeply: send fewer levels"),
        (b'{"a": "\xff"}', "application/json", "not UTF-8: repair its encoding"),
        (b"[1]", "application/json", "the body=[1]: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_body_that_cannot_be_read(server: Served, body: bytes, kind: str, said: str) -> None:
    answer = server.client.post(COMPLETION, content=body, headers={"content-type": kind})
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


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

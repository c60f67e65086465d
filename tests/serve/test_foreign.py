"""Every field of OpenAI's, vLLM's and llama.cpp's requests is obeyed, ignored, since it changes no text, or
refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from pydantic import BaseModel

from draftwise.serve.bodies import (
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
from draftwise.serve.foreign import ALIASES, IGNORED, REFUSED
from draftwise.serve.logits import bar_sequences

from .conftest import MODEL, Served, line
from .test_refusals import CHAT, COMPLETION, GOOD, RESPONSES
from .test_routes import events

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

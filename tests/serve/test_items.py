"""What a body of `/v1/responses` stands for, and what its answer counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openai")

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from draftwise.generation.text import Piece
from draftwise.serve.bodies import Responses
from draftwise.serve.generations import Event
from draftwise.serve.requests import ParsedRequest
from draftwise.serve.responses import ItemAnswer, as_chat
from draftwise.serve.tools import AnswerPart, new_call

NAMES: Any = SimpleNamespace(count=len)  # a letter is a token
SCHEMA = {"type": "object", "not": {"required": ["b"]}}


@pytest.mark.parametrize("strict", [None, True, False])
def test_the_form_of_a_text_is_as_strict_as_it_says(strict: bool | None) -> None:
    form = {"type": "json_schema", "name": "one", "schema": SCHEMA, "strict": strict}
    body = Responses.model_validate({"model": "m", "input": "Hi", "text": {"format": form}})
    asked = as_chat(body).response_format
    assert asked is not None and asked.json_schema is not None
    assert asked.json_schema.strict is strict and asked.json_schema.schema_ == SCHEMA


@pytest.mark.parametrize("several", [None, True, False])
def test_without_parallel_calls_the_first_one_counts(several: bool | None) -> None:
    class Caller:
        def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
            return [new_call(name, {}) for name in text]

    body = Responses.model_validate({"input": "Hi", "parallel_tool_calls": several})
    asked = ParsedRequest(as_chat(body), [], make_parser=Caller)
    answer = ItemAnswer(asked, [SimpleNamespace(index=0)], "m", NAMES, request=body)
    for said, reason in (("ab", ""), ("c", "eos")):
        answer.chunks(Event(0, [Piece(said, "target")], finish_reason=reason))
    assert [item["name"] for item in answer.output] == (["a"] if several is False else ["a", "b", "c"])


def test_reasoning_is_an_item_of_its_own() -> None:
    class Thinker:
        def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
            return [AnswerPart(reasoning=text)] if text.islower() else [AnswerPart(text)]

    body = Responses.model_validate({"model": "m", "input": "Hi"})
    asked = ParsedRequest(as_chat(body), [], make_parser=Thinker)
    stats, spec = SimpleNamespace(tokens=9), SimpleNamespace(prompt=[0] * 40)
    text = SimpleNamespace(index=0, cached_tokens=32, stats=stats, spec=spec)
    answer = ItemAnswer(asked, [text], "m", NAMES, request=body)
    told = []
    for said, reason in (("so ", ""), ("it is", ""), ("WELL", "eos")):
        pieces = [Piece(said, "target")]
        told += answer.chunks(Event(0, pieces, finish_reason=reason))
    kinds = [event["type"].removeprefix("response.") for event in told]
    opened, closed = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    thought = [*opened, *["reasoning_text.delta"] * 2, "reasoning_text.done", *closed]
    assert kinds == [*thought, *opened, "output_text.delta", "output_text.done", *closed]
    adapter: Any = TypeAdapter(ResponseStreamEvent)
    for event in told:
        assert adapter.validate_python(event).type == event["type"]
    thinking, message = answer.output
    assert (thinking["type"], thinking["content"][0]["text"]) == ("reasoning", "so it is")
    assert (message["type"], message["content"][0]["text"]) == ("message", "WELL")
    assert answer._item_usage() == {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 32},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": len("so it is")},
        "total_tokens": 49,
    }
    items = [{"role": "user", "content": "Hi"}, thinking, message, {"role": "user", "content": "And?"}]
    again = as_chat(Responses.model_validate({"model": "m", "input": items}))
    assert [one.content for one in again.messages] == ["Hi", "WELL", "And?"]

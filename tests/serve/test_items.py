"""What a body of `/v1/responses` stands for, and what its answer counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from draftwise.serve.items import Responses, chat
from draftwise.serve.responses import Response
from draftwise.serve.wishes import Asked

SCHEMA = {"type": "object", "not": {"required": ["b"]}}


@pytest.mark.parametrize("strict", [None, True, False])
def test_the_form_of_a_text_is_as_strict_as_it_says(strict: bool | None) -> None:
    form = {"type": "json_schema", "name": "one", "schema": SCHEMA, "strict": strict}
    body = Responses.model_validate({"model": "m", "input": "Hi", "text": {"format": form}})
    asked = chat(body).response_format
    assert asked is not None and asked.json_schema is not None
    assert asked.json_schema.strict is strict and asked.json_schema.schema_ == SCHEMA


def test_tokens_that_were_not_read_again_are_counted() -> None:
    body = Responses.model_validate({"model": "m", "input": "Hi"})
    answer = Response(Asked([], 40, True, False, True, False, 1), "m", SimpleNamespace(), body=body)  # type: ignore[arg-type]
    text: Any = SimpleNamespace(place=0, reused=32, stats=SimpleNamespace(tokens=5))
    used = answer._used([text])
    assert used["input_tokens_details"] == {"cached_tokens": 32}
    assert (used["input_tokens"], used["output_tokens"], used["total_tokens"]) == (40, 5, 45)

"""Answers in a given form from a GGUF model."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("llama_cpp")

from draftwise import Decoder
from draftwise.models.gguf.export import write_gguf
from draftwise.models.gguf.vocabulary import read_vocabulary
from draftwise.models.load import load_model, load_tokenizer

from .conftest import Served
from .test_tools import END, HEAD, TEMPLATES

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"enum": [10, 20]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The bundled target as a file, with a chat template that takes tools."""
    tokenizer = load_tokenizer("zoo:target")
    tokenizer.chat_template = HEAD.replace("%s", TEMPLATES["hermes"]) + END
    model, path = load_model("zoo:target"), tmp_path_factory.mktemp("gguf") / "target.gguf"
    write_gguf(model, path, words=(read_vocabulary(tokenizer, model.config.vocab_size), "gpt-2"))
    one = Served(Decoder.from_pretrained(str(path), drafters=["ngram"], policy="static-4"))
    yield one
    one.close()


@pytest.mark.parametrize("speculative", [True, False])
def test_a_schema_is_obeyed(gguf: Served, speculative: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = gguf.chat("Who?", response_format=form, max_tokens=60, speculative=speculative)
    person = json.loads(answer["choices"][0]["message"]["content"])
    assert person["name"] in ("Ann", "Bob") and person["age"] in (10, 20)


def test_a_required_call_is_written(gguf: Served) -> None:
    answer = gguf.chat("Who?", tools=[TOOL], tool_choice="required", max_tokens=90)
    (call,) = answer["choices"][0]["message"]["tool_calls"][:1]
    assert call["function"]["name"] == "find" and json.loads(call["function"]["arguments"])["age"] in (10, 20)

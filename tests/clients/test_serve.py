"""Clients that others wrote, against a server of the bundled models."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest

pytest.importorskip("openai")
pytest.importorskip("fastapi")

import openai
from pydantic import BaseModel

from studies.serve import exact as study
from studies.serve.local import serving

ASKED: dict[str, Any] = {
    "model": study.MODEL,
    "messages": [{"role": "user", "content": "Translate German to English: Ein Hund läuft."}],
    "max_tokens": 12,
    "temperature": 0.0,
}

# A chat template that takes tools and a motto; without any it is the bundled one.
TOLD = (
    "{{ motto }}{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}\n{% endfor %}"
)
CALLS = (
    "<|assistant|>{% for c in m.tool_calls or [] %}<call>"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</call>{% endfor %}"
    "{{ m['content'] }}"
)


class Paint(BaseModel):
    """Paints the wall."""

    colour: Literal["red", "blue"]


TOOLS: Any = [openai.pydantic_function_tool(Paint)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    decoder = study.busy()
    decoder.tokenizer = copy.deepcopy(decoder.tokenizer)
    decoder.tokenizer.chat_template = TOLD + decoder.tokenizer.chat_template.replace(
        "<|assistant|>{{ m['content'] }}", CALLS
    )
    with serving(decoder, study.MODEL, batch=4) as (address, _):
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key="none", timeout=None)


@pytest.fixture(scope="module")
def said(client: Any) -> str:
    """The answer to `ASKED`."""
    return str(client.chat.completions.create(**ASKED).choices[0].message.content)


def test_openai_plain_and_streaming(client: Any, said: str) -> None:
    assert [model.id for model in client.models.list()] == [study.MODEL]
    stream = client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == said and chunks[-1].usage.completion_tokens <= 12
    completion = client.completions.create(model=study.MODEL, prompt="Once", max_tokens=4, temperature=0.0)
    assert completion.choices[0].text and completion.usage.completion_tokens <= 4


def test_openai_logprobs(client: Any, said: str) -> None:
    answer = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert "".join(one.token for one in content) == said
    assert b"".join(bytes(one.bytes) for one in content).decode() == said
    for one in content:  # greedy: the most likely token is the one written
        assert one.top_logprobs[0].token == one.token and len(one.top_logprobs) == 2


def test_openai_parses_a_given_form(client: Any) -> None:
    class Answer(BaseModel):
        yes: bool
        colour: Literal["red", "blue"]

    asked = ASKED | {"max_tokens": 40}
    answer = client.chat.completions.parse(**asked, response_format=Answer)
    assert isinstance(answer.choices[0].message.parsed, Answer)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Paint"}}])
def test_openai_calls_tools_and_gets_their_answers(client: Any, choice: Any) -> None:
    asked = ASKED | {"max_tokens": 140, "tools": TOOLS}
    answer = client.chat.completions.parse(**asked, tool_choice=choice, parallel_tool_calls=False).choices[0]
    (call,) = answer.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Paint) and call.function.name == "Paint"
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    told = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    talk = [*ASKED["messages"], answer.message, told]
    then = client.chat.completions.create(**asked | {"messages": talk}, tool_choice="none").choices[0]
    assert then.message.tool_calls is None and then.finish_reason in ("stop", "length")


def test_openai_streams_calls(client: Any) -> None:
    asked = ASKED | {"max_tokens": 140, "tools": TOOLS, "tool_choice": "required"}
    whole = client.chat.completions.create(**asked, parallel_tool_calls=False)
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    for one, other in zip(whole.choices, final.choices, strict=True):
        (here,), (there,) = one.message.tool_calls, other.message.tool_calls
        assert here.function.arguments == there.function.arguments
        assert isinstance(there.function.parsed_arguments, Paint) and other.finish_reason == "tool_calls"
    told = {"role": "tool", "tool_call_id": there.id, "content": "done"}
    talk = ASKED | {"messages": [*ASKED["messages"], other.message, told]}
    assert client.chat.completions.create(**talk).choices[0].finish_reason in ("stop", "length")


def test_openai_texts_that_call_nothing_stay_as_they_are(client: Any) -> None:
    tools = [{"type": "function", "function": {"name": "Paint", "description": "Paints the wall."}}]
    asked = ASKED | {"tools": tools}
    told = client.chat.completions.create(**asked).choices[0]
    stream = client.chat.completions.create(**asked, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == told.message.content
    assert told.message.tool_calls is None
    strict = client.chat.completions.create(**asked | {"tools": TOOLS}).choices[0]  # text or whole calls
    assert strict.message.content or strict.message.tool_calls


RESPOND: dict[str, Any] = {"model": study.MODEL, "temperature": 0.0, "store": False}


def test_openai_responses_are_those_of_a_chat(client: Any, said: str) -> None:
    question = ASKED["messages"][0]["content"]
    asked = RESPOND | {"input": question, "max_output_tokens": 12}
    whole = client.responses.create(**asked)
    assert whole.output_text == said and whole.usage.output_tokens <= 12
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == said and final.status == whole.status
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == f"response.{whole.status}" and "response.output_text.delta" in kinds
    items = [{"role": "user", "content": [{"type": "input_text", "text": question}]}]
    assert client.responses.create(**asked | {"input": items}).output_text == said
    instructed = client.responses.create(**asked, instructions="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, *ASKED["messages"]]
    chat = client.chat.completions.create(**ASKED | {"messages": messages})
    assert instructed.output_text == chat.choices[0].message.content


def test_openai_responses_call_tools_and_parse(client: Any) -> None:
    asked = RESPOND | {"input": "Paint it.", "max_output_tokens": 140}
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    more = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.responses.create(**asked, **more)
    (call,) = answer.output
    assert call.type == "function_call" and Paint.model_validate_json(call.arguments)
    with client.responses.stream(**asked, **more) as stream:
        events = list(stream)
    assert events[-1].response.output[0].arguments == call.arguments
    assert "response.function_call_arguments.done" in [event.type for event in events]
    talk = [{"role": "user", "content": "Paint it."}, call.model_dump(exclude_none=True)]
    talk.append({"type": "function_call_output", "call_id": call.call_id, "output": "done"})
    then = client.responses.create(**asked | {"input": talk, "max_output_tokens": 8}, tools=tools)
    assert then.output_text
    assert isinstance(client.responses.parse(**asked, text_format=Paint).output_parsed, Paint)
    with pytest.raises(openai.BadRequestError, match="no response is stored here"):
        client.responses.create(**asked, previous_response_id=answer.id)


def test_openai_errors(client: Any, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.chat.completions.create(**ASKED | {"model": "other"})
    with pytest.raises(openai.BadRequestError, match="window"):
        client.chat.completions.create(**ASKED | {"max_tokens": 1 << 20})


def test_fields_of_vllm(client: Any, url: str) -> None:
    def complete(**more: Any) -> Any:
        asked = {"model": study.MODEL, "prompt": "Once", "max_tokens": 12, "temperature": 0.0}
        return client.completions.create(**asked, extra_body=more)

    def tokens(**body: Any) -> Any:
        return client.post(f"{url.removesuffix('/v1')}/tokenize", body=body, cast_to=dict[str, Any])["tokens"]

    plain = complete().choices[0].text
    word = plain.split()[0]
    assert word not in complete(bad_words=[word]).choices[0].text.split()
    some = [tokens(prompt=text)[-1] for text in (" the", " a")]
    assert set(complete(allowed_token_ids=some).choices[0].text.split()) <= {"the", "a"}
    chosen = complete(structured_outputs={"choice": ["no", 'ye"s']}).choices[0]
    assert chosen.text in ("no", 'ye"s') and chosen.finish_reason == "stop"
    (end,) = tokens(prompt="<|end|>")
    ends = {"logit_bias": {str(end): 100}}
    assert complete(**ends).usage.completion_tokens == 1
    late = complete(**ends, min_tokens=5)
    assert (late.usage.completion_tokens, late.choices[0].finish_reason) == (6, "stop")
    shown = complete(**ends, ignore_eos=True, skip_special_tokens=False, max_tokens=2).choices[0].text
    assert shown and complete(**ends, ignore_eos=True, max_tokens=2).choices[0].text == ""
    motto = {"chat_template_kwargs": {"motto": "Be brave. "}, "reasoning_effort": "low"}
    said = tokens(messages=ASKED["messages"])
    assert tokens(messages=ASKED["messages"], **motto) == [*tokens(prompt="Be brave. "), *said]
    begun = [*ASKED["messages"], {"role": "assistant", "content": "A dog"}]
    open_ = tokens(messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert open_ == [*said, *tokens(prompt="A dog")]
    whole = client.chat.completions.create(**ASKED | {"messages": begun}, extra_body={"verbosity": "low"})
    assert whole.choices[0].message.content is not None


def test_litellm(url: str, said: str) -> None:
    pytest.importorskip("litellm")
    code = (
        "import json, sys, litellm; asked = json.loads(sys.argv[1]); "
        "print(litellm.completion(**asked).choices[0].message.content)"
    )
    asked = ASKED | {"model": f"openai/{study.MODEL}", "api_base": url, "api_key": "none"}
    env = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # its prices are in the package too
    out = subprocess.run(
        [sys.executable, "-c", code, json.dumps(asked)], capture_output=True, text=True, env=env, check=False
    )
    assert out.stdout.strip() == said.strip(), out.stderr

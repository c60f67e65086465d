"""Clients that others wrote, against a server of the bundled models."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
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


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(study.busy(), study.MODEL, batch=4) as (address, _):
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key="none", timeout=600)


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


def test_openai_async(url: str, said: str) -> None:
    async def all_of(n: int) -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=600) as client:
            answers = [client.chat.completions.create(**ASKED) for _ in range(n)]
            return [a.choices[0].message.content for a in await asyncio.gather(*answers)]

    assert asyncio.run(all_of(5)) == [said] * 5


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


def test_openai_errors(client: Any, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.chat.completions.create(**ASKED | {"model": "other"})
    with pytest.raises(openai.BadRequestError, match="tools"):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        client.chat.completions.create(**ASKED, tools=tools)
    with pytest.raises(openai.BadRequestError, match="window"):
        client.chat.completions.create(**ASKED | {"max_tokens": 1 << 20})


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


def test_llm(url: str, said: str, tmp_path: Any) -> None:
    pytest.importorskip("llm")
    models = f"- model_id: local\n  model_name: '{study.MODEL}'\n  api_base: '{url}'\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    prompt = ASKED["messages"][0]["content"]
    for stream in ([], ["--no-stream"]):
        command = [sys.executable, "-m", "llm", "-m", "local", "-n", prompt, *stream, "--key", "none"]
        options = ["-o", "max_tokens", "12", "-o", "temperature", "0"]
        env = os.environ | {"LLM_USER_PATH": str(tmp_path)}
        out = subprocess.run(command + options, capture_output=True, text=True, env=env, check=False)
        assert out.stdout.strip() == said.strip(), out.stderr


def test_curl(url: str, said: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    body = json.dumps(ASKED)
    command = ["curl", "--noproxy", "*", "-s", f"{url}/chat/completions", "--json", body]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["choices"][0]["message"]["content"] == said

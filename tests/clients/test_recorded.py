"""The requests of clients whose pins exclude ours, with other texts: guidellm 0.8.1, aider 0.86.2,
`bench serve` of vLLM 0.32. `scripts/test-clients` runs these clients themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.serve.conftest import MODEL, Served, line, server

__all__ = ["server"]  # a fixture

TEXT = "the quick brown fox"
COMPLETION, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
ALWAYS: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PARTS = [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]
ITEMS = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]
CHUNK = {"max_tokens": 8, "ignore_eos": True}
CHAT_CHUNK = {"max_completion_tokens": 8, "ignore_eos": True, "messages": PARTS}
ROLES = ["system", "user", "assistant", "user", "assistant", "user"]
RECORDED: dict[str, tuple[str, dict[str, Any]]] = {
    "guidellm": (COMPLETION, ALWAYS | CHUNK | {"prompt": TEXT}),
    "guidellm chat": (CHAT, ALWAYS | CHAT_CHUNK),
    "guidellm responses": (RESPONSES, {"max_output_tokens": 8, "ignore_eos": True, "input": ITEMS}),
    "vllm": (COMPLETION, USAGE | CHUNK | {"prompt": TEXT, "repetition_penalty": 1.0, "logprobs": None}),
    "vllm chat": (CHAT, USAGE | CHAT_CHUNK),
    "aider": (CHAT, {"messages": [{"role": role, "content": TEXT} for role in ROLES], "temperature": 0}),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_request_is_answered(server: Served, name: str) -> None:
    path, body = RECORDED[name]
    answer = server.client.post(path, json={"model": MODEL, "stream": True} | body)
    assert answer.status_code == 200, answer.text
    rows = [row.removeprefix("data: ") for row in answer.text.splitlines() if row.startswith("data: {")]
    chunks: list[Any] = [json.loads(row) for row in rows]
    if path == RESPONSES:
        usage = chunks[-1]["response"]["usage"]
        said = "".join(one["delta"] for one in chunks if one["type"] == "response.output_text.delta")
        assert (usage["output_tokens"], len(said)) == (8, 8)
        return
    choices = [one["choices"][0] for one in chunks if one["choices"]]
    said = "".join(c["text"] if path == COMPLETION else c["delta"].get("content", "") for c in choices)
    if name == "aider":  # it names no length
        assert said.startswith(line("x", 100)) and choices[-1]["finish_reason"] == "length"
        return
    usages = [one["usage"] for one in chunks if one["usage"]]
    assert usages[-1]["completion_tokens"] == len(said) == 8 and usages[-1]["prompt_tokens"] == len(TEXT)
    assert (len(usages) > 1) == name.startswith("guidellm")


def test_a_load_tester_counts_the_tokens_of_its_prompts(server: Served) -> None:
    assert server.ask("/tokenize", prompt=TEXT, add_special_tokens=False)["count"] == len(TEXT)

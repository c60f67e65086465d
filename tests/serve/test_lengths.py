"""Prompts that are too long are refused before all of them is read, and others never."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.serve.errors import APIError
from draftwise.serve.requests import MARGIN, check_length
from tests.cli.conftest import Letters
from tests.tiny_tokenizers import MAKERS

from .conftest import MODEL, simulated

TEXT = "ab" * 1_000_000
SAID = [{"role": "user", "content": "a" * 50_000}] * 40
LONG: list[tuple[str, dict[str, Any]]] = [
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
    for path, body in LONG:
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

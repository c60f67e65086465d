"""Prompts of every kind become token ids, and what is none is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from draftwise import UserError
from draftwise.generation.prompts import encode, prompt_ids
from tests.tiny_tokenizers import MAKERS


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = MAKERS["byte-level"]()
    made.chat_template = (
        "{% for m in messages %}{{ m.role + m.content + (m.more | tojson if m.more) }}{% endfor %}"
    )
    return made


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "ids",
    [
        [3, 4],
        (3, 4),
        range(3, 5),
        iter([3, 4]),
        [np.int64(3), np.int32(4)],
        np.array([3, 4]),
        np.array([[3, 4]]),
        torch.tensor([3, 4]),
        torch.tensor([[3, 4]], dtype=torch.int32),
        list(torch.tensor([3, 4]).numpy()),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_ids_may_come_in_any_row(tokenizer: Any, ids: Any) -> None:
    assert encode(tokenizer, ids, vocab_size=9) == [3, 4]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (5, "5"),
        (None, "None"),
        (b"text", "b'text'"),
        ({"role": "user", "content": "x"}, "'role'"),
        ([], "empty"),
        (torch.tensor([]), "empty"),
        ("", "empty"),
        (["one", "two"], "'one'"),
        ([1, 2.0], "2.0"),
        ([True], "True"),
        ([None], "None"),
        ([3, None], "None"),
        ([3, 9], "9"),
        ([-1], "-1"),
        (torch.tensor(3), "3"),
        (torch.tensor([1.0]), "1.0"),
        (torch.tensor([[1, 2], [3, 4]]), "[1, 2]"),
        (np.zeros((1, 1, 2), dtype=int), "[0, 0]"),
        (nested(100_000), "messages"),
        ("half \udce9", "U+DCE9"),
        ([{"role": "user", "content": "\ud83d"}], "U+D83D"),
        ([{"role": "user", "content": None}], "None"),
        ([{"role": "user", "content": 5}], "5"),
        ([{"content": "x"}], "'x'"),
        ([{"role": "user", "content": "x"}, 5], "5"),
        ([{"role": "user", "content": "x", "more": nested(100_000)}], "template"),
    ],
    ids=lambda x: str(x)[:20] if not isinstance(x, list) else "list",
)
def test_what_is_no_prompt_is_refused_in_one_line(tokenizer: Any, prompt: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        encode(tokenizer, prompt, vocab_size=9)
    assert said in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("name", MAKERS)
def test_white_space_is_a_prompt_where_it_has_tokens(name: str) -> None:
    made = MAKERS[name]()
    for text in (" ", "\n"):
        ids = list(made(text)["input_ids"])
        if ids:
            assert encode(made, text, vocab_size=len(made)) == ids
        else:
            with pytest.raises(UserError, match="empty"):
                encode(made, text, vocab_size=len(made))


def test_a_message_may_be_white_space() -> None:
    made = MAKERS["byte-level"]()
    made.chat_template = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
    assert encode(made, " ", vocab_size=len(made)) == list(made("user ")["input_ids"])


def test_what_a_template_refuses_is_said_in_one_line() -> None:
    tokenizer = MAKERS["byte-level"]()
    tokenizer.chat_template = "{{ raise_exception('Roles must\nalternate') }}"
    with pytest.raises(UserError, match=r"refuses these messages: Roles must$"):
        prompt_ids(tokenizer, "x")
    tokenizer.chat_template = "{{ no way"
    with pytest.raises(UserError, match="chat template"):
        prompt_ids(tokenizer, "x")

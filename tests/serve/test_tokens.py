"""Where the text of each token of an echoed prompt begins."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.serve.tokens import TokenTexts
from studies.serve.local import counting
from tests.tiny_tokenizers import MAKERS

TEXT = "naïve 🙂🙂 数据 x</s> é"


def test_tokens_of_one_character_begin_where_it_does() -> None:
    made = MAKERS["byte-level"]()
    read = made(TEXT, return_offsets_mapping=True)
    begins = TokenTexts(made).offsets(read["input_ids"], TEXT)
    assert begins == [begin for begin, _ in read["offset_mapping"]]
    assert len(set(begins)) < len(begins)  # some characters have several tokens


@pytest.mark.parametrize(
    "name", sorted(MAKERS.keys() - {"suffixes"})
)  # whose spaces depend on the next token
def test_a_text_is_found_where_its_token_begins(name: str) -> None:
    made = MAKERS[name]()
    ids = made(TEXT)["input_ids"]
    text = made.decode(ids, clean_up_tokenization_spaces=False)
    names = TokenTexts(made)
    begins = names.offsets(ids, text)
    assert begins == sorted(begins)
    for token, begin in zip(ids, begins, strict=True):
        said = names.text(token).strip()
        assert "\ufffd" in said or text[begin:].lstrip().startswith(said)


def test_a_special_token_that_the_text_has_not_takes_no_place() -> None:
    made = MAKERS["llama"]()
    ids = [made.bos_token_id, *made("é x")["input_ids"]]
    begins = TokenTexts(made).offsets(ids, "é x")
    assert begins[0] == begins[1] == 0 and begins[-1] == 2


def test_an_echo_tells_where_its_tokens_begin(serve: Any, tokenizer: Any) -> None:
    text = "é🎉 Größe 你好"
    asked = {"echo": True, "logprobs": 1, "max_tokens": 2, "ignore_eos": True}
    choice = serve(counting(tokenizer)).complete(text, **asked)["choices"][0]
    offsets = [begin for begin, _ in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]]
    found = choice["logprobs"]["text_offset"]
    assert found[: len(offsets)] == offsets and found[len(offsets)] == len(text)
    assert choice["text"].startswith(text)

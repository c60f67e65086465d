"""Transformers' text-generation pipeline: batches, chats, streamers and stop strings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import TextStreamer, pipeline

TEXTS = ["The capital of France is", "Once upon a time, there was a little", "One, two, three,", "Why"]


@pytest.fixture(scope="module")
def write(small: Any, tokenizer: Any) -> Any:
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    return pipeline("text-generation", small, tokenizer=left)


@pytest.mark.parametrize("batch", [1, 4])
def test_batches(write: Any, drafted: Any, batch: int) -> None:
    settings = {"batch_size": batch, "max_new_tokens": 30, "do_sample": False}
    assert write(TEXTS, **settings, custom_generate=drafted) == write(TEXTS, **settings)


def test_chats(write: Any, drafted: Any) -> None:
    chats = [[{"role": "user", "content": text}] for text in TEXTS[:2]]
    settings = {"batch_size": 2, "max_new_tokens": 30, "do_sample": False}
    assert write(chats, **settings, custom_generate=drafted) == write(chats, **settings)


def test_stop_strings(write: Any, drafted: Any) -> None:
    long = write(TEXTS, batch_size=4, max_new_tokens=30, do_sample=False, return_full_text=False)
    stop = long[1][0]["generated_text"][10:13]
    settings = {"batch_size": 4, "max_new_tokens": 30, "do_sample": False, "stop_sequence": stop}
    own = write(TEXTS, **settings, return_full_text=False)
    assert own != long
    assert write(TEXTS, **settings, return_full_text=False, custom_generate=drafted) == own


def test_streamers(write: Any, drafted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for host in ({}, {"custom_generate": drafted}):
        streamer = TextStreamer(write.tokenizer, skip_prompt=True)
        write(TEXTS[1], max_new_tokens=30, do_sample=False, streamer=streamer, **host)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""

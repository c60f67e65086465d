"""A part of the sweep over all causal LM classes; `python scripts/sweep.py` is the whole."""

from __future__ import annotations

import os

import pytest

from .broken import MISTAKES
from .cases import Case, cases
from .judge import DIFFERENT, EQUAL, judge

PART, PARTS = map(int, os.environ.get("DRAFTWISE_SWEEP", "0/16").split("/"))
SHARD = [case for case in cases() if case.shard(PARTS) == PART]


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_broken_cache_is_seen(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[mistake](monkeypatch)
    verdict = judge(Case(name, name), ["alone", "uneven"])
    assert verdict.ways == {"alone": DIFFERENT, "uneven": DIFFERENT}


def test_every_way_of_decoding_is_tried() -> None:
    verdict = judge(Case("gpt2", "gpt2"))
    assert set(verdict.ways.values()) == {EQUAL} and len(verdict.ways) > 6

"""Sampling from a GGUF model keeps llama.cpp's distribution, whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.gguf import gguf as drafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.targets.gguf import gguf
from draftwise.targets.hf import HFTarget
from tests.core.turns import group_tokens, loop_with
from tests.distributions import check_distribution, exact
from tests.exactness.test_exact_hf import PROMPT, SETTINGS, Grammar, distribution_of
from tests.gguf import Plain, tiny
from tests.tiny import VOCAB, model

PATH = tiny(scale=5.0)
NAMES = ["good", "bad", "picked", "wide", "hf", "ngram"]


@cache
def plain() -> Plain:
    return Plain(PATH)


@cache
def logits(history: tuple[int, ...]) -> Any:
    return plain().after(history).astype("float64")


def distribution(history: Sequence[int]) -> Any:
    return logits(tuple(history))


@cache
def models() -> dict[str, Any]:
    return {
        "good": drafter(PATH, VOCAB),
        "bad": drafter(tiny(seed=9, scale=9.0), VOCAB),
        "picked": drafter(PATH, VOCAB, sample=False),
        "wide": drafter(tiny(scale=5.0, vocab=VOCAB + 9), VOCAB),
        "hf": LMDrafter(model("llama", scale=5.0, dtype=torch.float32), VOCAB),
    }


def team() -> dict[str, Any]:
    return models() | {"ngram": NgramDrafter()}


CASES = [*((name, "shaped") for name in NAMES), ("good", "plain"), ("bad", "plain"), ("bad", "penalties")]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_two_token_marginals(name: str, settings: str) -> None:
    expected = exact(distribution, PROMPT, VOCAB, 2, SETTINGS[settings])
    loop = loop_with(gguf(PATH), team(), f"static-2?drafter={name}")
    check_distribution(loop, PROMPT, SETTINGS[settings], 1500, expected, batch=100)


def test_switching_in_a_ragged_batch_keeps_the_distribution() -> None:
    expected = exact(distribution, PROMPT, VOCAB, 2, SETTINGS["shaped"])
    loop = loop_with(gguf(PATH), team(), "random?arms=drafters*lengths*stops&lengths=0,1,3")
    loop.add([7, 8, 9, 7, 8] * 3, Sampling(max_new_tokens=90, temperature=1.0))  # a longer text beside
    check_distribution(loop, PROMPT, SETTINGS["shaped"], 1500, expected, batch=60)


def test_a_gguf_drafter_keeps_the_distribution_of_another_engine() -> None:
    made = model("llama", scale=5.0)
    expected = exact(distribution_of(made), PROMPT, VOCAB, 2, SETTINGS["shaped"])
    loop = loop_with(HFTarget(made), team(), "static-2?drafter=good")
    check_distribution(loop, PROMPT, SETTINGS["shaped"], 1500, expected, batch=100)


@pytest.mark.parametrize("name", ["picked", "ngram"])
def test_a_seed_gives_plain_decodings_text(name: str) -> None:
    texts: list[list[int]] = []
    for policy in ("none", f"static-4?drafter={name}"):
        loop = loop_with(gguf(PATH), team(), policy)
        texts += group_tokens(loop.run([PROMPT], Sampling(max_new_tokens=60, temperature=1.0, seed=11)))
    assert texts[0] == texts[1] != plain().write(PROMPT, 60)


@pytest.mark.parametrize("name", NAMES)
def test_a_processor_with_a_state_sees_each_prefix_once(name: str) -> None:
    loop = loop_with(gguf(PATH), team(), f"static-4?drafter={name}")
    (written,) = group_tokens(loop.run([PROMPT], Sampling(max_new_tokens=40, processors=(Grammar(),))))
    text = list[int]()
    for place in range(40):
        row = distribution([*PROMPT, *text]).copy()
        row[place % 2 :: 2] = -float("inf")
        text.append(int(row.argmax()))
    assert written == text


def test_log_probabilities_are_the_raw_ones() -> None:
    loop = loop_with(gguf(PATH), team(), "static-4?drafter=good")
    sampling = Sampling(max_new_tokens=20, temperature=0.7, top_k=5, logprobs=True, seed=1)
    rounds = list(loop.run([PROMPT], sampling))
    text = [t for r in rounds for t in r.tokens]
    said = [x for r in rounds for x in r.logprobs]
    rows = [torch.from_numpy(distribution([*PROMPT, *text[:i]])).log_softmax(-1) for i in range(len(text))]
    assert any(r.accepted for r in rounds)
    assert said == pytest.approx([float(row[t]) for row, t in zip(rows, text, strict=True)], abs=1e-5)

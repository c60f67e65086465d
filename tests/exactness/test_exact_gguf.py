"""Sampling from a GGUF model keeps llama.cpp's distribution, whoever drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.gguf import gguf as drafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.policies.catalogue import method
from draftwise.targets.gguf import gguf
from draftwise.targets.hf import HFTarget
from tests.distributions import exact, p_value, sample
from tests.exactness.test_exact_hf import PROMPT, SETTINGS, Grammar
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
    law = exact(distribution, PROMPT, VOCAB, 2, SETTINGS[settings])

    def make() -> Loop:
        chosen = method(f"static-2?drafter={name}", list(team()))
        return Loop(gguf(PATH), team(), chosen.policy, chosen.recorder)

    assert p_value(sample(make, PROMPT, SETTINGS[settings], 1500, batch=100), law) > 1e-3


def test_switching_in_a_ragged_batch_keeps_the_law() -> None:
    law = exact(distribution, PROMPT, VOCAB, 2, SETTINGS["shaped"])

    def make() -> Loop:
        chosen = method("random?arms=drafters*lengths*stops&lengths=0,1,3", list(team()))
        loop = Loop(gguf(PATH), team(), chosen.policy, chosen.recorder)
        loop.add([7, 8, 9, 7, 8] * 3, Sampling(max_new_tokens=90, temperature=1.0))  # a longer text beside
        return loop

    counts = Counter[tuple[int, ...]](
        {t: n for t, n in sample(make, PROMPT, SETTINGS["shaped"], 1500, batch=60).items() if len(t) == 2}
    )
    assert p_value(counts, law) > 1e-3


def test_a_gguf_drafter_keeps_the_law_of_another_engine() -> None:
    made = model("llama", scale=5.0)

    def theirs(history: Sequence[int]) -> Any:
        with torch.inference_mode():
            return made(torch.tensor([list(history)])).logits[0, -1].double().numpy()

    law = exact(theirs, PROMPT, VOCAB, 2, SETTINGS["shaped"])

    def make() -> Loop:
        chosen = method("static-2?drafter=good", list(team()))
        return Loop(HFTarget(made), team(), chosen.policy, chosen.recorder)

    assert p_value(sample(make, PROMPT, SETTINGS["shaped"], 1500, batch=100), law) > 1e-3


@pytest.mark.parametrize("name", ["picked", "ngram"])
def test_a_seed_gives_plain_decodings_text(name: str) -> None:
    texts = []
    for policy in ("none", f"static-4?drafter={name}"):
        chosen = method(policy, list(team()))
        loop = Loop(gguf(PATH), team(), chosen.policy, chosen.recorder)
        rounds = list(loop.run([PROMPT], Sampling(max_new_tokens=60, temperature=1.0, seed=11)))
        texts.append([t for r in rounds for t in r.tokens])
    assert texts[0] == texts[1] != plain().write(PROMPT, 60)


@pytest.mark.parametrize("name", NAMES)
def test_a_processor_with_a_state_sees_each_prefix_once(name: str) -> None:
    chosen = method(f"static-4?drafter={name}", list(team()))
    loop = Loop(gguf(PATH), team(), chosen.policy, chosen.recorder)
    rounds = list(loop.run([PROMPT], Sampling(max_new_tokens=40, processors=(Grammar(),))))
    text = list[int]()
    for place in range(40):
        row = distribution([*PROMPT, *text]).copy()
        row[place % 2 :: 2] = -float("inf")
        text.append(int(row.argmax()))
    assert [t for r in rounds for t in r.tokens] == text


def test_log_probabilities_are_the_raw_ones() -> None:
    chosen = method("static-4?drafter=good", list(team()))
    loop = Loop(gguf(PATH), team(), chosen.policy, chosen.recorder)
    sampling = Sampling(max_new_tokens=20, temperature=0.7, top_k=5, logprobs=True, seed=1)
    rounds = list(loop.run([PROMPT], sampling))
    text = [t for r in rounds for t in r.tokens]
    said = [x for r in rounds for x in r.logprobs]
    rows = [torch.from_numpy(distribution([*PROMPT, *text[:i]])).log_softmax(-1) for i in range(len(text))]
    assert any(r.accepted for r in rounds)
    assert said == pytest.approx([float(row[t]) for row, t in zip(rows, text, strict=True)], abs=1e-5)

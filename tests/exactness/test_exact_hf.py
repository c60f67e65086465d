"""Sampling from a Transformers model keeps its distribution, and processors with a history or a state stay
right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.targets.hf import HFTarget
from tests.core.turns import group_tokens, loop_with
from tests.distributions import check_distribution, exact, p_value, sample_each
from tests.effort import drawn, some
from tests.tiny import VOCAB, model, own_text

PROMPT = [3, 5, 3, 5, 3]
NAMES = ["good", "bad", "picked", "ngram", "suffix"]
SETTINGS = {
    "plain": Sampling(max_new_tokens=2, temperature=1.0),
    "shaped": Sampling(max_new_tokens=2, temperature=0.8, top_k=9, top_p=0.9, min_p=0.02),
    "penalties": Sampling(
        max_new_tokens=2, temperature=1.1, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3
    ),
}


def distribution_of(made: Any) -> Any:
    @cache
    def logits(history: tuple[int, ...]) -> Any:
        with torch.inference_mode():
            return made(torch.tensor([list(history)])).logits[0, -1].double().numpy()

    return lambda history: logits(tuple(history))


def team() -> dict[str, Any]:
    return {
        "good": LMDrafter(model("llama", scale=4.0), VOCAB),
        "bad": LMDrafter(model("llama", seed=9, scale=9.0), VOCAB),
        "picked": LMDrafter(model("llama", scale=4.0), VOCAB, sample=False),
        "narrow": LMDrafter(narrow(), VOCAB),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
    }


def narrow() -> Any:
    """A drafter whose vocabulary is padded to another size than the target's."""
    made = model("llama", scale=5.0)
    made.resize_token_embeddings(VOCAB + 9)
    return made.double()


@pytest.mark.parametrize(("name", "settings"), some(product([*NAMES, "narrow"], SETTINGS), 5))
def test_two_token_marginals(name: str, settings: str) -> None:
    made = model("llama", scale=5.0)
    distribution = exact(distribution_of(made), PROMPT, VOCAB, 2, SETTINGS[settings])
    loop = loop_with(HFTarget(made), team(), f"static-2?drafter={name}")
    check_distribution(loop, PROMPT, SETTINGS[settings], 3000, distribution, batch=100)


def test_switching_in_a_ragged_batch_keeps_the_distribution() -> None:
    made = model("llama", scale=5.0)
    distribution = exact(distribution_of(made), PROMPT, VOCAB, 2, SETTINGS["shaped"])
    loop = loop_with(HFTarget(made), team(), "random?arms=drafters*lengths*stops&lengths=0,1,3")
    loop.add([7, 8, 9, 7, 8] * 3, Sampling(max_new_tokens=90, temperature=1.0))  # a longer text beside
    check_distribution(loop, PROMPT, SETTINGS["shaped"], 3000, distribution, batch=60)


class Ban(LogitsProcessor):
    """Bans the last token and the next one of the vocabulary: a rule that looks at the history."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for row, last in enumerate(input_ids[:, -1].tolist()):
            scores[row, (last + 1) % VOCAB] = -math.inf
            scores[row, last] = -math.inf
        return scores


class Grammar(LogitsProcessor):
    """Even and odd tokens in turn, kept as a state that each call moves on.

    Called twice or ahead, it goes wrong.
    """

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, self.calls % 2 :: 2] = -math.inf
        self.calls += 1
        return scores


def alternating(made: Any) -> dict[tuple[int, ...], float]:
    """The distribution of two tokens under that grammar."""
    raw = distribution_of(made)

    def parity(history: Sequence[int]) -> Any:
        z = raw(history).copy()
        z[(len(history) - len(PROMPT)) % 2 :: 2] = -math.inf
        return z

    return exact(parity, PROMPT, VOCAB, 2, Sampling(max_new_tokens=2, temperature=1.0))


def grammars(n: int) -> Iterator[Sampling]:
    """Settings of two tokens, each with a grammar of its own: `n` in a thorough run, else fewer."""
    for i in range(drawn(n)):
        yield Sampling(max_new_tokens=2, temperature=1.0, processors=(Grammar(),), seed=i)


@pytest.mark.parametrize(("name", "kind"), some(product(NAMES, [Ban, Grammar]), 3))
def test_the_users_own_processors_stay_lossless(name: str, kind: type[LogitsProcessor]) -> None:
    made = model("llama")
    ids = torch.tensor([PROMPT])
    own = made.generate(
        ids,
        max_new_tokens=40,
        do_sample=False,
        logits_processor=[kind()],
        attention_mask=torch.ones_like(ids),
    )
    loop = loop_with(HFTarget(made), team(), f"static-4?drafter={name}")
    (text,) = group_tokens(loop.run([PROMPT], Sampling(max_new_tokens=40, processors=(kind(),))))
    assert text == own[0, len(PROMPT) :].tolist()


def test_a_stateful_processor_keeps_the_distribution_when_sampling() -> None:
    made = model("llama", scale=5.0)
    loop = loop_with(HFTarget(made), team(), "static-2?drafter=good")
    counts = sample_each(loop, PROMPT, grammars(1500), batch=50)
    assert p_value(counts, alternating(made)) > 1e-3


def test_log_probabilities_are_the_raw_ones() -> None:
    made = model("llama")
    loop = loop_with(HFTarget(made), team(), "static-4?drafter=good")
    sampling = Sampling(max_new_tokens=20, temperature=0.7, top_k=5, logprobs=True, seed=1)
    rounds = list(loop.run([PROMPT], sampling))
    text = [t for r in rounds for t in r.tokens]
    said = [x for r in rounds for x in r.logprobs]
    with torch.inference_mode():
        rows = made(torch.tensor([PROMPT + text])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    assert any(r.accepted for r in rounds)
    assert said == pytest.approx([float(rows[i, t]) for i, t in enumerate(text)], abs=1e-6)


@pytest.mark.parametrize("name", ["picked", "ngram", "suffix"])
def test_a_seed_gives_plain_decodings_text(name: str) -> None:
    made = model("llama", scale=5.0)
    texts: list[list[int]] = []
    for policy in ("none", f"static-4?drafter={name}"):
        loop = loop_with(HFTarget(made), team(), policy)
        texts += group_tokens(loop.run([PROMPT], Sampling(max_new_tokens=60, temperature=1.0, seed=11)))
    assert texts[0] == texts[1] != own_text(made, PROMPT, 60)

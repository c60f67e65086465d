"""Sampling from a Transformers model keeps its distribution, and processors with a history or a state stay
right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from tests.distributions import exact, p_value, sample
from tests.effort import some
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

    def make() -> Loop:
        chosen = method(f"static-2?drafter={name}", list(team()))
        return Loop(HFTarget(made), team(), chosen.policy, chosen.recorder)

    counts = sample(make, PROMPT, SETTINGS[settings], 3000, batch=100)
    assert p_value(counts, distribution) > 1e-3


def test_switching_in_a_ragged_batch_keeps_the_law() -> None:
    made = model("llama", scale=5.0)
    distribution = exact(distribution_of(made), PROMPT, VOCAB, 2, SETTINGS["shaped"])

    def make() -> Loop:
        chosen = method("random?arms=drafters*lengths*stops&lengths=0,1,3", list(team()))
        loop = Loop(HFTarget(made), team(), chosen.policy, chosen.recorder)
        loop.add(
            [7, 8, 9, 7, 8] * 3, Sampling(max_new_tokens=90, temperature=1.0)
        )  # a longer text beside them
        return loop

    counts = Counter[tuple[int, ...]](
        {t: n for t, n in sample(make, PROMPT, SETTINGS["shaped"], 3000, batch=60).items() if len(t) == 2}
    )
    assert p_value(counts, distribution) > 1e-3


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
    chosen = method(f"static-4?drafter={name}", list(team()))
    loop = Loop(HFTarget(made), team(), chosen.policy, chosen.recorder)
    rounds = list(loop.run([PROMPT], Sampling(max_new_tokens=40, processors=(kind(),))))
    assert [t for r in rounds for t in r.tokens] == own[0, len(PROMPT) :].tolist()


def test_a_stateful_processor_keeps_the_law_when_sampling() -> None:
    made = model("llama", scale=5.0)
    raw = distribution_of(made)

    def parity(history: Sequence[int]) -> Any:
        z = raw(history).copy()
        z[(len(history) - len(PROMPT)) % 2 :: 2] = -math.inf
        return z

    sampling = Sampling(max_new_tokens=2, temperature=1.0)
    distribution = exact(parity, PROMPT, VOCAB, 2, sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    chosen = method("static-2?drafter=good", list(team()))
    loop = Loop(HFTarget(made), team(), chosen.policy, chosen.recorder)
    texts: dict[int, list[int]] = {}
    for i in range(1500):
        loop.add(PROMPT, Sampling(max_new_tokens=2, temperature=1.0, processors=(Grammar(),), seed=i))
        while len(loop.open) >= 50 or (i == 1499 and loop.open):
            for round in loop.step():
                texts.setdefault(round.request, []).extend(round.tokens)
    counts.update(tuple(t) for t in texts.values())
    assert p_value(counts, distribution) > 1e-3


def test_log_probabilities_are_the_raw_ones() -> None:
    made = model("llama")
    chosen = method("static-4?drafter=good", list(team()))
    loop = Loop(HFTarget(made), team(), chosen.policy, chosen.recorder)
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
    texts = []
    for policy in ("none", f"static-4?drafter={name}"):
        chosen = method(policy, list(team()))
        loop = Loop(HFTarget(made), team(), chosen.policy, chosen.recorder)
        rounds = list(loop.run([PROMPT], Sampling(max_new_tokens=60, temperature=1.0, seed=11)))
        texts.append([t for r in rounds for t in r.tokens])
    assert texts[0] == texts[1] != own_text(made, PROMPT, 60)

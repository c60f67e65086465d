"""Greedy float32 text on Spec-Bench prompts is what Transformers' own `generate` writes, whoever drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwise.build import build_drafters, eos_ids
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.data import spec_bench
from draftwise.drafters.lookup.datastore import build, tokenizer_fingerprint
from draftwise.models.load import load_model
from draftwise.models.runner.prefix_cache import keep_prefixes
from draftwise.models.weights.packed import arrange
from draftwise.specs import LoadOptions, parse_drafters
from draftwise.targets.hf import HFTarget
from tests.core.turns import group_tokens, loop_with
from tests.effort import THOROUGH, some
from tests.ties import Judge, parting, tie
from tests.tiny import own_text

NEW = 64 if THOROUGH else 32
ALL = "zoo:general ngram suffix retrieval"
WAYS = {
    "none": ("none", ""),
    "lm": ("static-4", "zoo:general"),
    "ngram": ("static-8", "ngram"),
    "suffix": ("static-8", "suffix"),
    "retrieval": ("static-8", "retrieval"),
    "ucb1": ("ucb1?arms=drafters*lengths&lengths=1,4,8", ALL),
}


PAIRS = [(way, batch) for i, way in enumerate(WAYS) for batch in ((1, 8) if i % 2 else (8, 1))]


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    encoded = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question.text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for question in spec_bench()[:: 10 if THOROUGH else 80]  # one of each task, or eight
    ]
    return [list(ids) for ids in encoded if len(ids) <= 2048 - NEW]


@pytest.fixture(scope="module")
def own(plain_model: Any, prompts: list[list[int]]) -> list[list[int]]:
    return [own_text(plain_model, prompt, NEW) for prompt in prompts]


@pytest.fixture(scope="module")
def target() -> HFTarget:
    """It keeps what it has read of the prompts, which takes longest."""
    model = load_model("zoo:target")
    target = HFTarget(model)
    arrange(model, True)
    keep_prefixes([target], 2048)
    return target


@pytest.fixture(scope="module")
def drafters(
    own: list[list[int]], tokenizer: Any, target: HFTarget, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Drafter]:
    """All of them; the datastore holds what the target wrote for every other prompt."""
    folder = tmp_path_factory.mktemp("spec-bench")
    texts = [tokenizer.decode(text, skip_special_tokens=True) for text in own[::2]]
    corpus, store = folder / "corpus.jsonl", folder / "store"
    corpus.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    build(
        [corpus],
        store,
        encode=lambda text: list(tokenizer(text)["input_ids"]),
        vocab_size=len(tokenizer),
        fingerprint=tokenizer_fingerprint(tokenizer.get_vocab()),
    )
    names = ["zoo:general", "ngram", "suffix", f"retrieval:{store}"]
    specs = parse_drafters(names, LoadOptions(pack=True))
    made = build_drafters(specs, target, tokenizer, "zoo:target")
    return {name.partition(":/")[0]: drafter for name, drafter in made.items()}


@pytest.fixture(scope="module")
def judge(plain_model: Any) -> Judge:
    return Judge(plain_model)


def test_the_prompts_are_many(prompts: list[list[int]]) -> None:
    assert len(prompts) == (48 if THOROUGH else 6)


@pytest.mark.parametrize(("way", "batch"), some(PAIRS, 2))
def test_text_is_the_models_own(
    way: str,
    batch: int,
    prompts: list[list[int]],
    own: list[list[int]],
    target: HFTarget,
    drafters: dict[str, Drafter],
    tokenizer: Any,
    judge: Judge,
) -> None:
    policy, names = WAYS[way]
    team = {name: drafters[name] for name in names.split()}
    loop = loop_with(target, team, policy)
    settings = Sampling(max_new_tokens=NEW, eos=eos_ids(target.runner.model, tokenizer))
    rounds = list(loop.run(prompts, settings, batch=batch))
    assert not any(loop.faults.values()), loop.faults
    assert 0 < sum(r.accepted for r in rounds) < sum(r.drafted for r in rounds) or way == "none"
    texts = group_tokens(rounds)
    for i, (prompt, text) in enumerate(zip(prompts, own, strict=True)):
        at = parting(text, texts[i])
        assert texts[i] == text or judge.tie([*prompt, *text[:at]]), f"prompt {i}, token {at}"


@pytest.mark.parametrize(
    ("rounded", "exact", "said"),
    [
        ([1.0, 1.0, 0.5], [1.00001, 1.0, 0.5], True),
        ([1.0, 1.0, 0.5], [1.001, 1.0, 0.5], False),  # the row's error is large, and so is the margin
        ([1.00001, 1.0, 0.5], [1.00001, 1.0, 0.5], False),  # nothing was rounded: nothing is a tie
    ],
)
def test_what_counts_as_a_tie(rounded: Sequence[float], exact: Sequence[float], said: bool) -> None:
    assert tie(torch.tensor(rounded).float(), torch.tensor(exact).float().double()) is said

"""`model.generate(..., custom_generate=...)` writes what `model.generate(...)` writes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from draftwise import transformers_generate
from draftwise.errors import DraftwiseWarning

TEXTS = ["Translate German to English: Die Katze schläft.", "Write a poem about the sea.", "What is 2 + 3?"]


@pytest.fixture(scope="module")
def batch(tokenizer: Any) -> dict[str, torch.Tensor]:
    prompts = [[{"role": "user", "content": t}] for t in TEXTS]
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    encoded = left.apply_chat_template(
        prompts, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    )
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


@pytest.fixture(scope="module")
def drafted() -> Any:
    return transformers_generate(drafters=["zoo:general", "ngram", "suffix"], policy="ucb1")


class Turns(LogitsProcessor):
    """Even and odd tokens in turn: a state that moves on with every call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, self.calls % 2 :: 2] = -float("inf")
        self.calls += 1
        return scores


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 12},
        {"logits_processor": [Turns()]},
    ],
)
def test_greedy_batches_are_the_same(
    plain_model: Any, batch: Any, drafted: Any, more: dict[str, Any]
) -> None:
    settings = {"max_new_tokens": 20, "do_sample": False}
    own = plain_model.generate(**batch, **settings, **copy.deepcopy(more))
    out = plain_model.generate(**batch, **settings, **copy.deepcopy(more), custom_generate=drafted)
    assert torch.equal(out, own)


def one(batch: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    keep = batch["attention_mask"][row].bool()
    return {
        "input_ids": batch["input_ids"][row][keep][None],
        "attention_mask": batch["attention_mask"][row][keep][None],
    }


def test_sampling_follows_the_global_seed(plain_model: Any, batch: Any) -> None:
    drafted = transformers_generate(drafters=["ngram"], policy="static-3")
    texts = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        more = {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "num_return_sequences": 2}
        texts.append(
            plain_model.generate(**one(batch, 1), max_new_tokens=20, custom_generate=drafted, **more)
        )
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0][0], texts[0][1])


def test_a_drafter_may_be_a_loaded_model(plain_model: Any, batch: Any) -> None:
    from draftwise.models.load import load_model

    small = load_model("zoo:general")
    drafted = transformers_generate(drafters=[small])
    own = plain_model.generate(**one(batch, 0), max_new_tokens=20, do_sample=False)
    out = plain_model.generate(
        **one(batch, 0),
        max_new_tokens=20,
        do_sample=False,
        custom_generate=drafted,
        return_dict_in_generate=True,
    )
    assert torch.equal(out.sequences, own)
    assert (
        type(small.lm_head).__name__ == type(plain_model.lm_head).__name__ == "Linear"
    )  # given models are not changed


def test_a_policy_is_checked_as_for_a_decoder(plain_model: Any, tokenizer: Any) -> None:
    adaptive = transformers_generate(drafters=["zoo:sql"], policy="disco", tokenizer=tokenizer)
    ids = tokenizer("SELECT", return_tensors="pt").input_ids
    with pytest.warns(DraftwiseWarning, match="trained for another drafter than zoo:sql"):
        plain_model.generate(ids, max_new_tokens=2, do_sample=False, custom_generate=adaptive)

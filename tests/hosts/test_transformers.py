"""`model.generate(..., custom_generate=...)` writes what `model.generate(...)` writes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

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


def test_greedy_batches_are_the_same(plain_model: Any, batch: Any) -> None:
    drafted = transformers_generate(drafters=["zoo:general", "ngram", "suffix"], policy="ucb1")
    settings = {"max_new_tokens": 20, "do_sample": False}
    own = plain_model.generate(**batch, **settings)
    assert torch.equal(plain_model.generate(**batch, **settings, custom_generate=drafted), own)


def one(batch: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    keep = batch["attention_mask"][row].bool()
    return {name: values[row][keep][None] for name, values in batch.items()}


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
    settings: dict[str, Any] = {**one(batch, 0), "max_new_tokens": 20, "do_sample": False}
    own = plain_model.generate(**settings)
    out = plain_model.generate(**settings, custom_generate=transformers_generate(drafters=[small]))
    assert torch.equal(out, own)
    assert type(small.lm_head) is type(plain_model.lm_head) is torch.nn.Linear, "given models are not changed"


def test_a_policy_is_checked_as_for_a_decoder(plain_model: Any, tokenizer: Any) -> None:
    adaptive = transformers_generate(drafters=["zoo:sql"], policy="disco", tokenizer=tokenizer)
    ids = tokenizer("SELECT", return_tensors="pt").input_ids
    with pytest.warns(DraftwiseWarning, match="trained for another drafter than zoo:sql"):
        plain_model.generate(ids, max_new_tokens=2, do_sample=False, custom_generate=adaptive)

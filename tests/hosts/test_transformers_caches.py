"""Inside `generate`, caches are as plain decoding leaves them, and it continues from them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer, QuantizedLayer

from draftwise import UserError, transformers_generate
from draftwise.models.cache_names import CACHE, cache_in, name_for
from draftwise.models.runner.recurrent import tensors
from tests.architectures.cases import build, cases
from tests.tiny import model

IDS = torch.tensor([[0, 0, 3, 4, 5, 3, 4], [7, 8, 9, 7, 8, 9, 7], [0, 5, 6, 5, 6, 5, 6]])
MASK = (IDS != 0).long()
MORE = torch.tensor([[3, 4, 3], [8, 9, 7], [5, 6, 6]])
SETTINGS: dict[str, Any] = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": [5, 11]}
KEPT = {"return_dict_in_generate": True}


@pytest.fixture(scope="module", params=["llama", "gemma3-window", "gpt2"])
def target(request: pytest.FixtureRequest) -> Any:
    return model(request.param)


@pytest.fixture(scope="module")
def drafted() -> Any:
    return transformers_generate(drafters=["ngram"], policy="static-3", tokenizer=object())


def states(cache: Any, mask: torch.Tensor) -> list[torch.Tensor]:
    """The keys and values of what is seen, by layer."""
    n = int(cache.get_seq_length())
    found = []
    for layer in cache.layers:
        for held in (layer.keys[:, :, :n], layer.values[:, :, :n]):
            seen = mask[:, n - held.shape[2] : n].bool()
            found.append(held.transpose(1, 2)[seen])
    return found


@pytest.mark.parametrize("how", ["returned", "static", "given", "given static"])
def test_a_cache_is_left_as_plain_decoding_leaves_it(target: Any, drafted: Any, how: str) -> None:
    left = []
    for host in ({}, {"custom_generate": drafted}):
        given: dict[str, Any] = dict(KEPT)
        if how == "static":
            given["cache_implementation"] = "static"
        if how == "given":
            given = {CACHE: DynamicCache(config=target.config)}
        if how == "given static":
            given = {CACHE: StaticCache(target.config, max_cache_len=40)}
        out = target.generate(IDS, attention_mask=MASK, **SETTINGS, **given, **host)
        left.append(given.get(CACHE) or cache_in(out))
    mask = torch.cat([MASK, torch.ones(3, 12, dtype=torch.long)], dim=1)
    assert type(left[0]) is type(left[1]) and left[0].get_seq_length() == left[1].get_seq_length() > 7
    for own, mine in zip(states(left[0], mask), states(left[1], mask), strict=True):
        assert torch.allclose(own, mine, atol=1e-8)


def test_a_cache_of_states_alone_is_left_as_plain_decoding_leaves_it(drafted: Any) -> None:
    """Its length is not told, and some releases call it by a name of its own."""
    target = build(next(case for case in cases() if case.name == "mamba"), lively=False).double()
    texts, left = [], []
    for host in ({}, {"custom_generate": drafted}):
        cache = DynamicCache(config=target.config)
        asked = {"max_new_tokens": 9, "pad_token_id": 0, "eos_token_id": None, name_for(target): cache}
        texts.append(target.generate(IDS[1:2], attention_mask=MASK[1:2], **asked, **host))
        left.append(list(tensors(cache.layers)))
    assert torch.equal(*texts) and len(left[0]) >= len(target.backbone.layers)
    for own, mine in zip(*left, strict=True):
        assert (own - mine).abs().max() <= 1e-5 * own.abs().max()  # it computes some of them in float32


def continued(target: Any, **host: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A first answer, all ids with more after it, and their mask."""
    first = target.generate(IDS, attention_mask=MASK, **SETTINGS, **KEPT, **host)
    ids = torch.cat([first.sequences, MORE], dim=1)
    return first, ids, torch.cat([MASK, torch.ones(3, ids.shape[1] - 7, dtype=torch.long)], dim=1)


@pytest.mark.parametrize("again", ["all ids", "new ids"])
@pytest.mark.parametrize("by", ["plain", "drafted"])
def test_it_goes_on_from_a_cache(target: Any, drafted: Any, again: str, by: str) -> None:
    host = {"custom_generate": drafted} if by == "drafted" else {}
    first, ids, mask = continued(target, **host)
    texts = []
    for host in ({}, {"custom_generate": drafted}):
        cache = copy.deepcopy(cache_in(first))
        new = ids if again == "all ids" else ids[:, cache.get_seq_length() :]
        out = target.generate(
            new, attention_mask=mask, max_new_tokens=10, pad_token_id=0, **{CACHE: cache}, **host
        )
        texts.append((out, cache.get_seq_length()))
    assert torch.equal(texts[0][0], texts[1][0]) and texts[0][1] == texts[1][1]


def test_what_a_cache_holds_is_what_the_text_goes_on_from(drafted: Any) -> None:
    """Not what the ids say: a cache of other text gives other text, as in plain decoding."""
    target = model("llama")
    with torch.no_grad():
        other = cache_in(target(torch.tensor([[9, 2, 9, 2, 9, 2, 13]]), use_cache=True))
    ids, asked = torch.cat([IDS[1:2], MORE[:1]], dim=1), {"max_new_tokens": 10, "pad_token_id": 0}
    texts = [
        target.generate(ids, **asked, **{CACHE: copy.deepcopy(other)}, **host)
        for host in ({}, {"custom_generate": drafted})
    ]
    assert torch.equal(*texts) and not torch.equal(texts[0], target.generate(ids, **asked))


def test_finished_rows_after_a_cache_still_have_their_scores(drafted: Any) -> None:
    target = model("llama")
    first, ids, mask = continued(target)
    asked = {"output_scores": True, **KEPT, "eos_token_id": list(range(3, 16)), "max_new_tokens": 14}
    asked |= {"attention_mask": mask, "pad_token_id": 0}
    found = [
        target.generate(ids, **asked, **{CACHE: copy.deepcopy(cache_in(first))}, **host)
        for host in ({}, {"custom_generate": drafted})
    ]
    assert torch.equal(found[0].sequences, found[1].sequences)
    for own, mine in zip(found[0].scores, found[1].scores, strict=True):
        assert torch.allclose(own, mine, atol=1e-4)


class Quantised(QuantizedLayer):  # type: ignore[no-untyped-call]  # as its base
    """Stores whole numbers."""

    def _quantize(self, tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return tensor.round()

    def _dequantize(self, q_tensor: torch.Tensor) -> torch.Tensor:
        return q_tensor


class Rounded(DynamicLayer):  # type: ignore[no-untyped-call]  # as its base
    """The same by a caller's own class."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().update(key_states.round(), value_states.round(), *args, **kwargs)


@pytest.mark.parametrize("kind", [Quantised, Rounded])
def test_an_empty_cache_that_changes_what_it_stores_is_refused(drafted: Any, kind: Any) -> None:
    """Plain decoding reads what it stores, so that a text with drafts would be another."""
    target, asked = model("llama"), {"max_new_tokens": 12, "pad_token_id": 0}

    def given() -> dict[str, Any]:
        cache = DynamicCache(config=target.config)
        cache.layers = [kind() for _ in cache.layers]
        return {CACHE: cache}

    own = target.generate(IDS[1:2], **asked, **given())
    assert not torch.equal(own, target.generate(IDS[1:2], **asked))
    with pytest.raises(UserError, match=rf"{CACHE}: .*{kind.__name__} may not; use a DynamicCache"):
        target.generate(IDS[1:2], **asked, **given(), custom_generate=drafted)


class Odd(DynamicCache):
    """A cache whose layers are of a kind that is not known."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        kind = type(self.layers[0])
        self.layers = [type("Odd" + kind.__name__, (kind,), {})() for _ in self.layers]


def test_a_cache_of_other_layers_or_with_the_whole_prompt_is_refused(drafted: Any) -> None:
    target = model("llama")
    cache = Odd(target.config)
    target(IDS[1:2, :4], **{CACHE: cache})
    with pytest.raises(UserError, match=rf"{CACHE}: .*OddDynamicLayer"):
        target.generate(IDS[1:2], max_new_tokens=4, custom_generate=drafted, **{CACHE: cache})
    cache = cache_in(target(IDS[1:2], use_cache=True))
    with pytest.raises(UserError, match=f"{CACHE}: it holds all 7 tokens"):
        target.generate(IDS[1:2], max_new_tokens=4, custom_generate=drafted, **{CACHE: cache})

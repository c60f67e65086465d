"""The cache grows with its texts, and nothing is left on a model when its decoder has gone."""

from __future__ import annotations

import gc
from itertools import count
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.drafts import Draft
from draftwise.core.request import Request
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.early_exit import EarlyExitDrafter
from draftwise.errors import UserError
from draftwise.generation.decoder import Decoder
from draftwise.models.runner import cache
from draftwise.models.runner.cache import RowCache, RowLayer
from draftwise.models.runner.executors.eager import Eager
from draftwise.models.runner.hidden_states import LayerHooks
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from tests.core.turns import decode_all, loop_with
from tests.targets.test_hf import prompts
from tests.targets.test_trees import grown, team, texts_of
from tests.tiny import model, own_text


@pytest.mark.parametrize("first", [1, 64])
def test_text_is_the_models_own_while_the_cache_grows(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Rows join, swap, branch into trees and outgrow their slots."""
    monkeypatch.setattr(cache, "FIRST_SLOTS", first)
    monkeypatch.setattr(cache, "ROUND_SLOTS", 4)
    made = model("llama")
    own = [own_text(made, p, 40) for p in prompts(6)]
    truth = {tuple(p): text for p, text in zip(prompts(6), own, strict=True)}
    for batch in (1, 3):
        assert texts_of(grown(HFTarget(made, chunk=8), team(truth)), 40, batch) == own


def planned(starts: list[int], width: int, *, slots: int = 0, depth: int = 1, **settings: bool) -> RowCache:
    """A cache of `depth` layers, with a pass planned for rows that already hold `starts` tokens."""
    cache, even = RowCache(depth, starts), len(set(starts)) == 1
    cache.schedule(0, starts, width, even=even, rows=len(starts), slots=slots, **settings)
    return cache


def test_other_states_are_copied_only_when_the_cache_grows() -> None:
    cache = planned([0], 300, slots=640)
    layer: RowLayer = cache._rows[0]
    layer.keep("index", torch.ones(1, 2, 300, 3))
    held = layer.more["index"]
    cache.schedule(0, [300], 2, even=True, rows=1, slots=0)
    layer.keep("index", torch.ones(1, 2, 2, 3))
    assert layer.more["index"] is held
    cache.schedule(0, [302, 302], 2, even=True, rows=2, slots=0)  # one more row, as many slots
    got = layer.keep("index", torch.full((2, 2, 2, 3), 2.0))
    assert got.shape == (2, 2, 304, 3)
    assert bool((got[1, :, 302:] == 2).all()) and bool((got[0, :, :302] == 1).all())


def test_memory_doubles_up_to_what_the_texts_need() -> None:
    cache = planned([0], 300, slots=2000)
    assert cache.plan.slots == 640
    cache.schedule(0, [640], 1, even=True, rows=1, slots=0)  # 0: the need is unchanged
    assert cache.plan.slots == 1344
    cache.schedule(0, [1344], 1, even=True, rows=1, slots=0)
    assert cache.plan.slots == 2048


@pytest.mark.parametrize(
    ("starts", "settings", "counted"),
    [([2, 2], {}, False), ([2, 3], {}, True), ([2, 2], {"tree": True}, True)],
)
def test_a_layer_that_counts_is_noticed(starts: list[int], settings: Any, counted: bool) -> None:
    """Where all rows have one length, the cache's length is the position, and counting does no harm."""
    cache = planned(starts, 1, **settings)
    assert cache.get_seq_length() == cache.rows[0].get_seq_length() == max(starts) and not cache.counted
    cache.get_seq_length(0)
    assert cache.counted == counted


def test_moved_tokens_need_no_other_row() -> None:
    cache, states = planned([3], 2, slots=64), torch.arange(6.0).reshape(1, 1, 2, 3)
    cache.rows[0].update(states, states)
    cache.move([(0, 4, 3)], torch.device("cpu"))
    for held in cache.rows[0].tensors:
        assert len(held) == 1 and (held[0, :, 3:5] == states[0, :, 1:]).all()


@pytest.mark.parametrize(("rows", "start"), [(1, 200), (3, 3)])
def test_what_grew_before_memory_ran_out_is_given_back(rows: int, start: int) -> None:
    cache, states = planned([3], 2, slots=64, depth=2), torch.zeros(1, 1, 2, 3)
    for layer in cache.rows:
        layer.update(states, states)
    cache.schedule(0, [start] * rows, 1, even=True, rows=rows, slots=0)
    cache.rows[0].grow()
    cache.plan.is_torn = True  # the second layer found none
    cache.ready(1, 5, 0)
    assert {tuple(held.shape) for layer in cache.rows for held in layer.tensors} == {(1, 1, 64, 3)}
    assert (cache.plan.capacity, cache.plan.slots, cache.plan.is_torn) == (1, 64, False)


class Fixed(Eager):
    """An executor that captures where keys and values are."""

    buffers = (4, 128)


def test_fixed_buffers_never_move_while_texts_come_grow_swap_and_go() -> None:
    made = model("llama")
    own = [own_text(made, p, 40) for p in prompts(6)]
    truth = {tuple(p): text for p, text in zip(prompts(6), own, strict=True)}
    target = HFTarget(made, chunk=8)
    target.runner.use(Fixed())
    places = set[tuple[int, ...]]()
    for batch in (3, 1, 2):
        assert texts_of(grown(target, team(truth)), 40, batch) == own
        layers = target.runner.cache.rows
        places.add(tuple(tensor.data_ptr() for layer in layers for tensor in layer.tensors))
        assert {(*layer.keys.shape[:1], layer.keys.shape[2]) for layer in layers} == {Fixed.buffers}
    assert len(places) == 1 and target.runner.cache.plan.buffers == len(layers)
    target.runner.cache.ready(8, 200, 0)  # a text that outgrows them
    assert target.runner.cache.plan.slots > 128


@pytest.mark.parametrize("name", ["llama", "deepseek-sparse"])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_a_text_that_finds_no_memory_leaves_the_others_theirs(
    name: str, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tensors have grown for it, the next one cannot: others go on, and later ones begin."""
    made, calls, allocate = model(name), count(), torch.Tensor.new_zeros

    def limited(like: torch.Tensor, *size: int, **named: Any) -> torch.Tensor:
        if len(size) == 4 and size[2] > 64 and next(calls) % 5 > 2:
            raise torch.OutOfMemoryError("out of memory")
        return allocate(like, *size, **named)

    lengths = ((5, 9), (100, 2), (7, 6))
    texts = [([(7 * at) % 19 + 2 for at in range(n)], new) for n, new in lengths]
    own = [own_text(made, *text) for text in texts]
    monkeypatch.setattr(cache, "FIRST_SLOTS", 16)
    monkeypatch.setattr(torch.Tensor, "new_zeros", limited)
    loop = loop_with(HFTarget(made, probe=False), {}, "none")
    rounds, ids = list[Round](), dict[int, int]()
    for at in order:
        prompt, new = texts[at]
        ids[loop.add(prompt, Sampling(max_new_tokens=new)).id] = at
        rounds += loop.step()
    rounds += decode_all(loop)
    for key, at in ids.items():
        mine = [round for round in rounds if round.request == key]
        assert (mine[-1].finish_reason == "error") == (at == 1)
        assert at == 1 or [token for round in mine for token in round.tokens] == own[at]


def test_what_sparse_attention_keeps_counts_as_memory() -> None:
    target = HFTarget(model("deepseek-sparse"))
    loop = loop_with(target, {}, "none")
    loop.add([5, 6, 7], Sampling(max_new_tokens=9))
    loop.step()
    slots = target.runner.cache.plan.slots
    latent, rope, index = 16, 8, 8
    assert target.runner.cache.bytes == 2 * slots * (latent + rope + index) * 8


def test_attention_that_counts_blocks_of_tokens_reads_no_tree() -> None:
    target = HFTarget(model("minimax-sparse"))
    request = Request(0, [3, 4, 5], 3, Sampling(), Random(0), Random(0))
    target.open(request)
    with pytest.raises(UserError, match="drafts chains"):
        target.verify([(request, Draft((5, 6), (-1, -1)))])


def hooks(made: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in made.modules())


def test_a_model_has_no_hooks_when_its_decoder_has_gone() -> None:
    made = model("llama")
    target = HFTarget(made)
    team: dict[str, Any] = {"early": EarlyExitDrafter(target, layers=1)}
    dec = Decoder(target, team, method("static-3", list(team)), None)
    taken = LayerHooks(made, (-1,))
    made(torch.tensor([[3]]))
    assert hooks(made) == 2 and taken.latest[-1].shape[1] == 1
    del dec, target, team, taken
    gc.collect()
    assert hooks(made) == 0


def test_of_a_closed_row_no_more_is_erased_than_was_written() -> None:
    cache = planned([3, 3], 2, slots=64)
    layer: RowLayer = cache._rows[0]
    layer.update(torch.zeros(2, 2, 2, 3), torch.zeros(2, 2, 2, 3))
    cache.swap_rows(0, 1, 7)
    layer.keys[0, :, :7] = torch.nan
    layer.keys[:, :, 7:] = 1.0
    layer.values[1] = 2.0
    cache.erase(0)
    assert (layer.keys[0, :, :7] == 0.0).all()
    assert (layer.keys[:, :, 7:] == 1.0).all() and (layer.values[1] == 2.0).all(), "the rest is not touched"
    cache.fix(2, 64)
    cache.erase(0)
    assert not layer.keys[0].any(), "a graph writes without a plan"

"""Texts that cross a length from which on their model reads with other rotary frequencies, and that continue
past the window that it was trained for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config, PhimoeConfig, XGLMConfig

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.early_exit import EarlyExitDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models.runner.positions import ENDLESS, Bounded
from draftwise.models.runner.traits import ask
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from tests.architectures.cases import Case, build
from tests.core.turns import loop_with, written
from tests.effort import some
from tests.models.test_hidden_states import right
from tests.targets.test_hf import Oracle
from tests.targets.test_trees import grown, team
from tests.tiny import COMMON, VOCAB, lively, random_texts

BORDER = 24
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": BORDER,
}
WIDE: dict[str, Any] = {k: v for k, v in COMMON.items() if k != "head_dim"}
WIDE |= {"hidden_size": 32, "max_position_embeddings": 96, "original_max_position_embeddings": BORDER}
MOE: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 2}
SCALES: dict[str, Any] = {"short_mscale": 1.1, "long_mscale": 1.4}
CONFIGS: dict[str, Any] = {
    "phi3-longrope": lambda: Phi3Config(**WIDE, rope_parameters=dict(LONGROPE)),
    "phimoe-longrope": lambda: PhimoeConfig(**WIDE, **MOE, rope_parameters=LONGROPE | SCALES),
    "llama-longrope": lambda: LlamaConfig(
        **COMMON | {"max_position_embeddings": 96}, rope_parameters=dict(LONGROPE)
    ),
    "llama-dynamic": lambda: LlamaConfig(
        **COMMON | {"max_position_embeddings": BORDER},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    ),
}


def model(name: str, seed: int = 0) -> Any:
    """A random model in which positions matter: its text changes with them."""
    return lively(CONFIGS[name](), seed)


def own_text(made: Any, prompt: list[int], n: int) -> list[int]:
    """Its own greedy text; dynamic frequencies first forget the texts before."""
    made(torch.tensor([[1]]))
    ids = torch.tensor([prompt])
    out = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
    return list(out[0, len(prompt) :].tolist())


LENGTHS = (1, 12, 30, 23, 24, 25, 50)


def prompts() -> list[list[int]]:
    return random_texts(LENGTHS)


def texts_of(loop: Loop, n: int, batch: int) -> list[list[int]]:
    return written(loop, prompts(), n, batch)


@pytest.mark.parametrize("name", some(CONFIGS, 3))
def test_greedy_text_is_the_models_own(name: str) -> None:
    """Prompts on both sides of the border and on it, in pieces; good and bad drafts, chains and trees; rows
    that cross beside rows that do not."""
    made = model(name)
    own = [own_text(made, p, 30) for p in prompts()]
    assert len({tuple(text[-6:]) for text in own}) > 4, "texts that end alike would show little"
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    for batch in (1, 3):
        target = HFTarget(made, chunk=8)
        assert texts_of(grown(target, team(truth)), 30, batch) == own
        chains: dict[str, Any] = {
            "oracle": Oracle(truth, 0.3),
            "self": LMDrafter(made, VOCAB),
            "lm": LMDrafter(model(name, 1), VOCAB),
            "early": EarlyExitDrafter(target, layers=1),
            "ngram": NgramDrafter(),
        }
        assert (
            texts_of(loop_with(target, chains, "random?arms=drafters*lengths&lengths=0,1,4,7"), 30, batch)
            == own
        )


def test_the_frequencies_of_these_models_make_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody looks for borders, the text is another."""
    for name in CONFIGS:
        made = model(name)
        target = HFTarget(made, chunk=8)
        assert target.runner.rope.borders == (BORDER,)
        assert target.runner.rope.anew == name.startswith("phi")
        assert (target.runner.rope.moving == BORDER) == (name == "llama-dynamic")
        target.regimes = None
        got = texts_of(loop_with(target, {}, "none"), 30, 1)
        assert got != [own_text(made, p, 30) for p in prompts()]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_new_turn_is_read_as_the_whole_text_would_be(name: str) -> None:
    made = model(name)
    target = HFTarget(made, chunk=8)
    loop = loop_with(target, {"ngram": NgramDrafter()}, "static-3")
    for first, second in ((4, 3), (4, 20), (18, 3), (30, 5)):
        rng = Random(first)
        tokens = [rng.randrange(2, VOCAB) for _ in range(first)]
        request = loop.add(tokens, Sampling(max_new_tokens=9), keep=True)
        while loop.open:
            loop.step()
        loop.extend(request, [rng.randrange(2, VOCAB) for _ in range(second)], Sampling(max_new_tokens=9))
        prompt = list(request.tokens)
        while loop.open:
            loop.step()
        assert request.tokens[len(prompt) :] == own_text(made, prompt, 9)
        loop.close(request)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_beginning_is_shared_only_where_it_was_read_alike(name: str) -> None:
    made = model(name)
    loop_of = method("none", [])
    loop = Loop(HFTarget(made, chunk=8), {}, loop_of.policy, loop_of.recorder)
    long = prompts()[-1]
    requests = [loop.add(long[:n], Sampling(max_new_tokens=12)) for n in (22, 40, 22, 50, 40, 24)]
    while loop.open:
        loop.step()
    for request in requests:
        n = request.prompt_length
        assert request.tokens[n:] == own_text(made, long[:n], 12)


def test_drafts_end_at_the_border() -> None:
    target = HFTarget(model("llama-longrope"))
    made = target.runner.model
    truth = {tuple(p): own_text(made, p, 30) for p in prompts()}
    loop = loop_with(target, {"oracle": Oracle(truth, 0.0)}, "static-7")
    request = loop.add(prompts()[1], Sampling(max_new_tokens=30))
    seen = []
    while loop.open:
        before = len(request.tokens)
        (round,) = loop.step()
        seen.append((before, before + round.drafted))
    assert all(end <= BORDER or start > BORDER for start, end in seen)
    assert any(end - start > 4 for start, end in seen if start > BORDER)


@pytest.mark.parametrize("name", ["phi3-longrope", "llama-longrope"])
def test_features_are_those_of_the_pass_that_read_the_text_last(name: str) -> None:
    """Texts of which all is read with the same frequencies, beside others that are not."""
    made = model(name)
    reads = HFTarget(made, chunk=8)
    reads.hidden_states((0, 1, -1))
    loop = loop_with(reads, {}, "none")
    requests = [loop.add(p, Sampling(max_new_tokens=15)) for p in prompts()[:5]]
    checked = 0
    while loop.open:
        loop.step()
        for request in requests:
            crossed = request.prompt_length <= BORDER < len(request.tokens)
            n = len(request.tokens)
            if not request.done and not crossed and (n > BORDER + 1 or n <= BORDER):
                right(reads, made, request, (0, 1, -1))
                checked += 1
    assert checked > 20


def llama(**fields: Any) -> Any:
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    made = auto.from_config(LlamaConfig(**COMMON | fields)).double().eval()
    made.generation_config.eos_token_id = None
    return made


def test_text_goes_on_past_the_trained_window_with_one_warning() -> None:
    made = llama(max_position_embeddings=32)
    own = own_text(made, [3, 4, 5], 60)
    for batch in (1, 2):
        loop = loop_with(HFTarget(made), {"ngram": NgramDrafter()}, "static-4")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            requests = [loop.add([3, 4, 5], Sampling(max_new_tokens=60)) for _ in range(batch)]
            requests.append(loop.add([5] * 40, Sampling(max_new_tokens=3)))
            while loop.open:
                loop.step()
        assert all(r.tokens[3:] == own for r in requests[:-1])
        assert requests[-1].tokens[40:] == own_text(made, [5] * 40, 3)
        mine = [w for w in said if w.category is DraftwiseWarning]
        assert len(mine) == 1 and "32 tokens" in str(mine[0].message)


def test_where_positions_are_learned_the_window_is_the_end() -> None:
    config = GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    auto: Any = AutoModelForCausalLM
    target = HFTarget(auto.from_config(config).eval())
    assert target.max_length == 32
    loop = loop_with(target, {}, "none")
    with pytest.raises(UserError, match="32"):
        loop.add([5] * 33, Sampling(max_new_tokens=3))
    request = loop.add([5] * 30, Sampling(max_new_tokens=9, eos=frozenset()))
    while loop.open:
        loop.step()
    assert len(request.tokens) == 33 and request.finish_reason == "length", "the last one is never read"


def test_where_positions_grow_with_the_text_it_goes_on() -> None:
    """XGLM enlarges its table of positions by the cache's length, whatever positions it is told."""
    sizes: dict[str, Any] = {"d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 4}
    config = XGLMConfig(vocab_size=VOCAB, max_position_embeddings=16, scale_embedding=False, **sizes)
    made = lively(config).float()  # it does not run in float64
    with pytest.warns(DraftwiseWarning, match="a pass of its own"):
        target = HFTarget(made, chunk=8)
    assert target.max_length > 10_000 and target.trained == 16
    own = [own_text(made, p, 30) for p in prompts()]
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    assert len({tuple(text[-6:]) for text in own}) > 3
    assert texts_of(grown(target, team(truth)), 30, 3) == own


def test_a_plain_model_pays_nothing_for_borders() -> None:
    target = HFTarget(llama())
    assert target.regimes is None and not target.runner.rope.borders


def test_an_index_has_no_last_position() -> None:
    """Beyond its training a text goes on, as in plain decoding; a far token is outside of its blocks."""
    fields = {"layer_types": ["full_attention", "minimax_m3_sparse"]}
    made = build(Case("minimax", "minimax_m3_vl_text", fields), lively=False)
    assert ask(made).limit == ENDLESS


def test_a_look_up_outside_its_table_is_stopped_before_it_runs() -> None:
    """On a GPU it would end every later use of the device by this process."""
    table, outside = torch.zeros(4, 2), torch.tensor([0, 4])
    looks: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: torch.nn.functional.embedding(outside, table),
        lambda: table[outside],
        lambda: table.index_select(0, outside),
        lambda: table.gather(0, outside[:, None]),
        lambda: table.scatter_(0, outside[:, None], 1.0),
    )
    for look in looks:
        with pytest.raises(IndexError, match="position 4 in a table of 4"), Bounded():  # type: ignore[no-untyped-call]
            look()
    with Bounded():  # type: ignore[no-untyped-call]
        assert table[torch.tensor([3]), torch.tensor([1])].shape == (1,)

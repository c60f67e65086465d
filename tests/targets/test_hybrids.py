"""Models with states that cannot rewind write their own text, token for token, whoever drafts."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch

from draftwise import transformers_generate
from draftwise.core.arms import Arm
from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.early_exit import EarlyExitDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models.probe.small import VOCAB, spread
from draftwise.models.runner import PassInput
from draftwise.models.runner.executors.compile import compile_runner
from draftwise.models.runner.recurrent import StateCache, in_modules, put
from draftwise.models.runner.states import StateRunner
from draftwise.targets.hf import HFTarget
from tests.architectures.cases import Case, cases, own_text
from tests.architectures.cases import build as built
from tests.architectures.judge import EQUAL, Guesser, run
from tests.core.turns import Anyone, decode_all
from tests.distributions import p_value, sample
from tests.effort import some

NEW = 12
STEPPED = ["jamba", "mamba", "recurrent_gemma"]  # their classes ignore their states in longer passes
KINDS = ["qwen3_next", "bamba", "lfm2", "rwkv", *STEPPED]
PROMPTS = [[5, 9, 17, 30, 8, 44, 3], [12, 40, 7], [5, 9, 17, 30, 8, 44, 3, 21, 6, 50, 33], [29]]


@cache
@torch.inference_mode(False)  # whichever test asks first: later ones track gradients
def model(name: str) -> Any:
    return built(next(case for case in cases() if case.name == name), lively=False)


@cache
def own(name: str) -> dict[tuple[int, ...], list[int]]:
    """What Transformers' plain decoding writes; it must depend on the text, or no mistake would show."""
    texts = {tuple(p): own_text(model(name), p, NEW) for p in PROMPTS}
    assert len({token for text in texts.values() for token in text}) > 8
    return texts


def said(name: str, drafters: str, batch: int) -> tuple[str, str]:
    truth = own(name)
    team = {"good": Guesser(truth, 0.15), "bad": Guesser(truth, 1.0)}
    arms = [Arm(one, length) for one in drafters.split() for length in ((0,) if one == "none" else (2, 5))]
    return run(model(name), dict(truth), PROMPTS if batch > 1 else PROMPTS[1:3], team, arms, batch)


@torch.inference_mode()
def test_the_logits_of_a_pass_are_not_kept() -> None:
    """Those of a long prompt would double what the next one takes."""
    rows = StateRunner(model("bamba"))
    rows.open(0)
    rows.forward(PassInput(0, [[5, 9, 17]], 3))
    assert rows._blank.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("drafters", ["good", "bad", "good bad none"])
@pytest.mark.parametrize("name", KINDS)
def test_the_text_is_the_models_own(name: str, drafters: str, batch: int) -> None:
    assert said(name, drafters, batch) == (EQUAL, "")


@pytest.mark.parametrize("name", ["qwen3_next", "recurrent_gemma", "rwkv"])
def test_a_drafter_with_states_takes_its_own_guesses_back(name: str) -> None:
    """It drafts for a target of the same kind with other weights, so that many of its tokens are rejected."""
    other = built(Case(name, name), lively=False)
    spread(other, 0, 2.5, 0.1)
    team = {"lm": LMDrafter(other, VOCAB)}
    assert run(model(name), dict(own(name)), PROMPTS, team, [Arm("lm", 3), Arm("lm", 6)], 3) == (EQUAL, "")


@pytest.mark.parametrize("name", ["qwen3_next", "mamba", "recurrent_gemma"])
def test_generate_writes_it_too(name: str) -> None:
    longest = max(map(len, PROMPTS[:3]))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in PROMPTS[:3]])
    decode = transformers_generate(drafters=["ngram", "suffix"], policy="static-4")
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "custom_generate": decode}
    if name == "recurrent_gemma":  # its own states read the padding
        with pytest.raises(UserError, match="without padding in attention_mask it may work"):
            model(name).generate(ids, attention_mask=(ids > 0).long(), **settings)
        ids = torch.tensor([PROMPTS[0]])
        out = model(name).generate(ids, attention_mask=torch.ones_like(ids), **settings)
        assert out[:, len(PROMPTS[0]) :].tolist() == [own(name)[tuple(PROMPTS[0])]]
        return
    out = model(name).generate(ids, attention_mask=(ids > 0).long(), **settings)
    assert out[:, longest:].tolist() == [own(name)[tuple(p)] for p in PROMPTS[:3]]


@pytest.mark.parametrize("name", some([*KINDS[1:], KINDS[0]], len(KINDS)))
def test_sampled_texts_follow_the_models_own_distribution(name: str) -> None:
    made, prompt = model(name), PROMPTS[1]
    heat = _heat(made, prompt)
    sampling = Sampling(max_new_tokens=2, top_k=3, temperature=heat)
    lm = built(Case(name, name), lively=False)
    spread(lm, 7, 1.0, 0.1)
    expected: dict[tuple[int, ...], float] = {}
    first = _top(made, prompt, heat)
    for a, p in first.items():
        for b, q in _top(made, [*prompt, a], heat).items():
            expected[a, b] = p * q
    policy = Anyone((Arm("lm", 1), Arm("lm", 2)))
    loop = Loop(HFTarget(made), {"lm": LMDrafter(lm, VOCAB)}, policy, policy)
    counts = sample(loop, prompt, sampling, 250, batch=4)
    assert p_value(counts, expected) > 1e-3
    assert p_value(counts, {text: 1 / len(expected) for text in expected}) < 1e-3  # the test can fail


def _heat(made: Any, text: list[int]) -> float:
    """A temperature at which the three likeliest tokens are neither alike nor is one of them certain."""
    logits = _logits(made, text).topk(3).values
    return float(logits[0] - logits[2]) / 1.5


def _top(made: Any, text: list[int], heat: float) -> dict[int, float]:
    logits, tokens = _logits(made, text).topk(3)
    return dict(zip(tokens.tolist(), (logits / heat).softmax(-1).tolist(), strict=True))


@torch.inference_mode()
def _logits(made: Any, text: list[int]) -> torch.Tensor:
    put(in_modules(made), None)  # where a class keeps its states there
    logits: torch.Tensor = made(input_ids=torch.tensor([text])).logits[0, -1].double()
    return logits


@pytest.mark.parametrize("forever", [False, True])
def test_a_fault_stays_in_the_text_that_had_it(forever: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes fail half-way, when some layers' states have moved on already."""
    made, truth = model("qwen3_next"), own("qwen3_next")
    target, policy = HFTarget(made), Anyone((Arm("good", 4), Arm("none", 0)))
    loop = Loop(target, {"good": Guesser(truth, 0.3)}, policy, policy)
    requests = [loop.add(prompt, Sampling(max_new_tokens=NEW)) for prompt in PROMPTS]
    passes, layer = [0], made.model.layers[-1].mlp

    def fails(*_: Any) -> None:
        plan = target.runner.cache.plan
        if requests[1].id in target.runner.request_ids[plan.first : plan.last]:
            passes[0] += 1
            if passes[0] == 4 or (forever and passes[0] > 4):
                raise RuntimeError("out of order")

    hook = layer.register_forward_pre_hook(fails)
    try:
        decode_all(loop)
    finally:
        hook.remove()
    assert passes[0] >= 4
    for i, (prompt, request) in enumerate(zip(PROMPTS, requests, strict=True)):
        written = request.tokens[len(prompt) :]
        assert (request.finish_reason == "error") == (forever and i == 1)
        assert written == truth[tuple(prompt)][: len(written)]
        assert (len(written) == NEW) != (forever and i == 1)


def test_one_snapshot_a_row_and_accepted_tokens_are_read_again_with_the_next_draft() -> None:
    made, truth = model("qwen3_next"), own("qwen3_next")
    target = HFTarget(made)
    rows = target.runner
    assert isinstance(rows, StateRunner)
    widths: list[int] = []
    hook = made.register_forward_pre_hook(
        lambda module, given, named: widths.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    policy = Anyone((Arm("bad", 4),))
    loop = Loop(target, {"bad": Guesser(truth, 1.0)}, policy, policy)
    try:
        requests = [loop.add(prompt, Sampling(max_new_tokens=NEW)) for prompt in PROMPTS[:2]]
        loop.step()
        for state in rows.states:
            state.saved = state.saved or state.live
        sizes = [state.bytes for state in rows.states]
        assert rows.bytes == sum(sizes) and len(set(sizes)) == 1
        while loop.open:
            loop.step()
            assert rows.bytes <= sum(sizes)
    finally:
        hook.remove()
    assert all(request.done for request in requests) and not rows.states and rows.bytes == 0
    assert rows.reread > 0 and max(widths) <= max(map(len, PROMPTS)) + 4 + 8


@pytest.mark.parametrize("name", ["qwen3_next", "bamba", "mamba2"])
def test_rows_whose_passes_have_equal_width_share_one(name: str) -> None:
    made, truth = model(name), own(name)
    target = HFTarget(made)
    passes: list[tuple[int, ...]] = []
    hook = made.register_forward_pre_hook(
        lambda module, given, named: passes.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    policy = Anyone((Arm("bad", 2), Arm("none", 0)))
    loop = Loop(target, {"bad": Guesser(truth, 0.5)}, policy, policy)
    try:
        requests = [loop.add(prompt, Sampling(max_new_tokens=NEW)) for prompt in PROMPTS]
        decode_all(loop)
    finally:
        hook.remove()
    for prompt, request in zip(PROMPTS, requests, strict=True):
        assert request.tokens[len(prompt) :] == truth[tuple(prompt)]
    assert any(rows == 4 and width == 1 for rows, width in passes)
    assert any(rows > 1 and width > 1 for rows, width in passes)


def test_a_class_that_is_wrong_in_batches_is_read_one_text_at_a_time() -> None:
    """RWKV mixes the rows of a batch up when it reads one token after a state."""
    with pytest.warns(DraftwiseWarning, match=r"Rwkv.* each text in a pass of its own .*off by \d"):
        assert not HFTarget(model("rwkv")).runner.together


@pytest.mark.parametrize("name", ["qwen3_next", "jamba"])
def test_heads_are_given_the_hidden_states_of_the_text(name: str) -> None:
    """Of each token once, whatever was read again beside it."""
    made, truth = model(name), own(name)
    target, policy = HFTarget(made), Anyone((Arm("good", 4), Arm("none", 0)))
    tap = target.hidden_states((1, -1))
    loop = Loop(target, {"good": Guesser(truth, 0.4)}, policy, policy)
    requests = [loop.add(p, Sampling(max_new_tokens=NEW), keep=True) for p in PROMPTS[:2]]
    decode_all(loop)
    for request in requests:
        ids = torch.tensor([request.tokens[:-1]])
        with torch.inference_mode():
            states = made(input_ids=ids, output_hidden_states=True).hidden_states
        held = tap.of(request.id, 0, ids.shape[1])
        assert torch.allclose(held, torch.cat([states[1][0], states[-1][0]], dim=-1), rtol=1e-3, atol=1e-3)


def test_what_reads_one_token_a_pass_is_said_with_the_figure() -> None:
    with pytest.warns(DraftwiseWarning, match=r"MambaForCausalLM.*one token a pass.*off by \d"):
        assert HFTarget(model("mamba")).runner.steps


def test_a_model_that_loses_its_state_is_refused_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # what was found before does not count
    monkeypatch.setattr(StateCache, "get_recurrent_state", lambda *_, **__: None)
    made = built(Case("qwen3_next", "qwen3_next"), lively=False)
    monkeypatch.setattr("draftwise.models.probe.carriers", lambda model: [""])
    with pytest.raises(UserError, match=r"Qwen3NextForCausalLM cannot be read in pieces.*off by \d") as error:
        HFTarget(made)
    assert "\n" not in str(error.value)


def test_trees_early_exit_and_compiled_passes_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made, truth = model("bamba"), own("bamba")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = HFTarget(made)
        policy = Anyone((Arm("tree", 3, width=2),))
        loop = Loop(target, {"tree": Guesser(truth, 0.2, tree=True)}, policy, policy)
        request = loop.add(PROMPTS[0], Sampling(max_new_tokens=NEW))
        while loop.open:
            (said,) = loop.step()
    assert request.finish_reason == "error" and not target.can_read_trees()
    assert "cannot read a tree of drafted tokens (it keeps a state that cannot rewind)" in str(said.error)
    with pytest.raises(UserError, match="BambaForCausalLM keeps a state that cannot rewind"):
        EarlyExitDrafter(target)
    monkeypatch.setenv("DRAFTWISE_COMPILE", "kept")
    compile_runner(target, "kept")
    assert "keeps a state that cannot rewind" in target.runner.compiler.state

"""Learned stopping from end to end: where drafts end, that the text is the target's, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.core.arms import Stop
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.roles import Drafter, GradeJob
from draftwise.core.sampling import Sampling
from draftwise.core.stops import needs
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import UserError
from draftwise.models.load import load_model
from draftwise.policies.catalogue.learned import disco, specdecpp
from draftwise.policies.classifiers.stopping import Disco, Scorer, SpecDecPlus, save
from draftwise.targets.hf import HFTarget
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.core.turns import group_tokens
from tests.distributions import check_distribution, exact
from tests.tiny import VOCAB, model

V, PROMPT, LENGTH, N = 4, (0, 1, 2, 1, 0, 1), 3, 1200
RNG = np.random.default_rng(7)
P = RNG.dirichlet(np.full(V, 0.6), size=V) * 0.94 + 0.015
GOOD = 0.7 * P + 0.3 * RNG.dirichlet(np.ones(V), size=V)
BAD = P[:, ::-1].copy()  # likely where the target is not
MANNERS = ("always", "never", "random")
METHODS: dict[str, Any] = {"disco": disco, "specdecpp": specdecpp}


def f32(values: Any) -> Any:
    return np.asarray(values, dtype=np.float32)


def scorer(kind: str, manner: str, *, width: int = V, seed: int = 0, scale: float = 1.0) -> Scorer:
    """Nonsense: one that always says stop, one that never does, or random weights."""
    rng = np.random.default_rng(seed)
    size, bias = (scale, 0.0) if manner == "random" else (0.0, -60.0 if manner == "always" else 60.0)
    if kind == "disco":
        shapes: tuple[Any, ...] = ((8, 12), 8, (1, 8))
        a, b, c = (f32(size * rng.normal(size=shape)) for shape in shapes)
        a[:, 11] *= 0.05  # the place has the larger numbers
        return Disco(a, b, c, f32([bias]))
    block = f32(size * rng.normal(size=(width, width)) / width**0.5), f32(size * rng.normal(size=width))
    return SpecDecPlus((block,), f32(size * rng.normal(size=(2, width))), f32([0.0, bias]), repeat=3)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(kind: str, manner: str = "random", **options: Any) -> str:
        save(scorer(kind, manner, **options), tmp_path / f"{kind}.safetensors")
        return str(tmp_path / f"{kind}.safetensors")

    return write


def request(at: int, tokens: Sequence[int], prompt_length: int, **settings: Any) -> Request:
    sampling = Sampling(**{"max_new_tokens": 60} | settings)
    return Request(at, list(tokens), prompt_length, sampling, Random(at), Random(at))


# -- the catalogue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [disco, specdecpp])
def test_what_cannot_run_is_refused_at_the_start(file: Any, policy: Any) -> None:
    kind, other = policy.__name__, "disco" if policy is specdecpp else "specdecpp"
    (arm,) = policy(["a"]).policy.arms  # the bundled one
    assert arm.stop.rule == kind and arm.stop.scorer.drafter
    with pytest.raises(UserError, match=r"there is no such file.*; or train one: draftwise train classifier"):
        policy(["a"], model="/nowhere/c.safetensors")
    with pytest.raises(UserError, match=f"{other} of itself"):
        policy(["a"], model=file(other))
    for threshold in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match=r"threshold=.*: give a probability"):
            policy(["a"], model=file(kind), threshold=threshold)
    with pytest.raises(UserError, match="length=0"):
        policy(["a"], model=file(kind), length=0)
    for shortest in (0, 21):
        with pytest.raises(UserError, match=f"shortest={shortest}&length=20"):
            specdecpp(["a"], model=file("specdecpp"), shortest=shortest)


def test_a_drafter_without_hidden_states_is_refused_by_name(file: Any) -> None:
    for name in ("ngram?min=2", "suffix", "retrieval:corpus"):
        with pytest.raises(UserError, match=r"hidden states and .* has none") as caught:
            specdecpp([name, "zoo:general"], model=file("specdecpp"))
        assert name in str(caught.value)
    assert specdecpp(["ngram", "zoo:general"], model=file("specdecpp"), drafter="zoo:general")
    assert specdecpp(["lm:folder"], model=file("specdecpp"))


# -- where drafts end ------------------------------------------------------------------------------------


def by_hand(rule: Stop, rows: Sequence[Any], states: Sequence[Any], place: int) -> int:
    """The length of a draft whose tokens came from these probability rows and hidden states."""
    joint = 1.0
    for k, (row, state) in enumerate(zip(rows, states, strict=True)):
        if rule.rule == "disco":
            top = np.sort(np.asarray(row, np.float64))[::-1][:10]
            entropy = -sum(p * log(p) for p in top if p > 0.0)
            x = np.zeros(12)
            x[: len(top)], x[10], x[11] = top, entropy, place + k
            c = rule.scorer
            h = np.maximum(c.hidden_weight.astype(np.float64) @ x + c.hidden_bias, 0.0)
            if 1 / (1 + np.exp(-float((c.out_weight @ h)[0]) - float(c.out_bias[0]))) < rule.threshold:
                return k + 1
        elif k > 0:
            y = np.asarray(state, np.float64)
            for _ in range(rule.scorer.repeat):
                z = rule.scorer.blocks[0][0].astype(np.float64) @ y + rule.scorer.blocks[0][1]
                y = y + z / (1 + np.exp(-z))
            reject, accept = rule.scorer.out_weight @ y + rule.scorer.out_bias
            joint *= 1 / (1 + np.exp(reject - accept))
            if 1.0 - joint > rule.threshold and k + 1 >= rule.shortest:
                return k + 1
    return len(rows)


RULES = {
    "disco": lambda w, s, scale: Stop("disco", 0.5, scorer("disco", "random", seed=s, scale=scale)),
    "specdecpp": lambda w, s, scale: Stop(
        "specdecpp", 0.7, scorer("specdecpp", "random", width=w, seed=s, scale=scale), 2
    ),
}


@pytest.mark.parametrize("kind", RULES)
def test_a_simulated_draft_ends_where_the_classifier_says(kind: str) -> None:
    matrix = np.random.default_rng(3).dirichlet(np.full(12, 0.3), size=12)
    distribution, ends = markov(matrix), set()
    for seed in range(12):
        rule = RULES[kind](12, seed, 0.8)
        text = [Random(seed).randrange(12) for _ in range(9)]
        (draft,) = SimDrafter(distribution).draft([Job(request(0, text, 4), 10, (rule,))])
        whole, last = [], text[-1]
        for _ in range(10):
            whole.append(matrix[last])
            last = int(matrix[last].argmax())
        assert len(draft.tokens) == by_hand(rule, whole, whole, 5)
        assert [s.place for s in draft.signals] == list(range(5, 5 + len(draft.tokens)))
        ends.add(len(draft.tokens))
    assert len(ends) > 2, "the classifiers must differ"


@torch.inference_mode()
def own_rows(made: Any, text: list[int], n: int) -> tuple[list[int], list[Any], list[Any]]:
    """A model's greedy text with the probability row and the last hidden state behind each token."""
    tokens, rows, states = list(text), list[Any](), list[Any]()
    for _ in range(n):
        out = made(torch.tensor([tokens]), output_hidden_states=True)
        rows.append(out.logits[0, -1].float().softmax(-1).numpy())
        states.append(out.hidden_states[-1][0, -1].float().numpy())
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(text) :], rows, states


@pytest.fixture(scope="module")
def general() -> Any:
    return load_model("zoo:general")


@pytest.mark.parametrize("name", ["llama", "gemma2-window", "gpt2", "gpt-neox", "qwen3-window"])
def test_hidden_states_are_those_that_transformers_reports(name: str) -> None:
    attention = "eager" if name == "gemma2-window" else "sdpa"
    made = model(name, dtype=torch.float32, scale=3.0, attention=attention)
    rule = Stop("specdecpp", 0.7, scorer("specdecpp", "never", width=16))
    texts = [[3, 4, 5], [6, 7, 8, 9, 3, 4, 5], [5] * 30]
    jobs = [Job(request(i, text, 1), 4, (rule,)) for i, text in enumerate(texts)]
    for text, draft in zip(texts, LMDrafter(made, VOCAB).draft(jobs), strict=True):
        tokens, _, states = own_rows(made, text, 4)
        assert list(draft.tokens) == tokens
        for now, state in zip(draft.signals, states, strict=True):
            assert now.hidden.dtype == np.float32
            np.testing.assert_allclose(now.hidden, state, atol=1e-4)


def test_graded_tokens_carry_what_drafted_ones_do() -> None:
    made = model("llama", dtype=torch.float32, scale=4.0)
    rules = (Stop("specdecpp", 0.7, scorer("specdecpp", "never", width=16)), RULES["disco"](0, 0, 1e-6))
    drafter, text = LMDrafter(made, VOCAB), [3, 4, 5, 6, 7]
    r = request(0, text, 2)
    (draft,) = drafter.draft([Job(r, 4, rules, rows=True)])
    r.tokens += draft.tokens
    job = GradeJob(r, len(text), [1.0] * 4, draft=draft, signals=needs(rules))
    for grade, now in zip(drafter.grade([job])[0], draft.signals, strict=True):
        assert grade.accept == 1.0 and grade.signals is not None
        assert grade.signals.place == now.place
        np.testing.assert_allclose(grade.signals.top, now.top, rtol=1e-4)
        np.testing.assert_allclose(grade.signals.hidden, now.hidden, atol=1e-4)


# -- the text is the target's ---------------------------------------------------------------------------


def sim_team() -> dict[str, Drafter]:
    return {"good": SimDrafter(markov(GOOD)), "bad": SimDrafter(markov(BAD)), "ngram": NgramDrafter()}


@pytest.mark.parametrize(
    ("kind", "drafter", "manner"),
    [
        *((kind, "bad", manner) for kind in ("disco", "specdecpp") for manner in MANNERS),
        *((kind, "good", "random") for kind in ("disco", "specdecpp")),
        ("disco", "ngram", "random"),
    ],
)
def test_sampled_text_keeps_the_distribution(file: Any, kind: str, drafter: str, manner: str) -> None:
    settings = Sampling(max_new_tokens=LENGTH, temperature=1.0)
    team, path = sim_team(), file(kind, manner, scale=2.0)
    chosen = METHODS[kind](list(team), model=path, drafter=drafter, length=4)
    distribution = exact(markov(P), PROMPT, V, LENGTH, settings)
    loop = Loop(SimTarget(markov(P), V), team, chosen.policy, chosen.recorder)
    check_distribution(loop, PROMPT, settings, N, distribution)


@pytest.fixture(scope="module")
def greedy(plain_model: Any) -> list[tuple[list[int], list[int]]]:
    """Two prompts and what the target writes after them, read from the beginning for each token."""
    prompts = [[Random(i).randrange(5, 4000) for _ in range(6 + 5 * i)] for i in range(2)]
    return [(prompt, own_rows(plain_model, prompt, 14)[0]) for prompt in prompts]


@pytest.mark.parametrize("name", ["zoo:general", "zoo:sql"])
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("kind", ["disco", "specdecpp"])
def test_greedy_text_is_the_targets_own(
    greedy: Any, plain_model: Any, general: Any, file: Any, kind: str, manner: str, name: str
) -> None:
    drafter = LMDrafter(general if name == "zoo:general" else load_model(name), 4096)
    path = file(kind, manner, width=192, scale=0.3)
    chosen = METHODS[kind]([name], model=path, length=4)
    loop = Loop(HFTarget(plain_model), {name: drafter}, chosen.policy, chosen.recorder)
    rounds = list(loop.run([prompt for prompt, _ in greedy], Sampling(max_new_tokens=14), batch=2))
    assert group_tokens(rounds) == [text for _, text in greedy]
    assert not any(loop.faults.values()), loop.faults
    longest = max(round.drafted for round in rounds)
    if manner != "random":
        assert longest == (4 if manner == "never" else 1 if kind == "disco" else 2)


@pytest.mark.parametrize(
    ("made", "width", "said"),
    [
        (SuffixDrafter, V, "mine: UserError: specdecpp reads the drafter's hidden states, and it has none"),
        (lambda: SimDrafter(markov(GOOD)), 9, "states of 9 numbers and the drafter's have 4"),
    ],
)
def test_a_drafter_that_does_not_fit_is_a_fault_and_the_text_goes_on(
    file: Any, made: Any, width: int, said: str
) -> None:
    chosen = specdecpp(["mine"], model=file("specdecpp", width=width))
    target = SimTarget(markov(P), V)
    loop = Loop(target, {"mine": made()}, chosen.policy, chosen.recorder)
    rounds = list(loop.run([PROMPT], Sampling(max_new_tokens=12)))
    text, want = [t for r in rounds for t in r.tokens], list(PROMPT)
    while len(want) < len(PROMPT) + 12:
        want.append(int(P[want[-1]].argmax()))
    assert text == want[len(PROMPT) :]
    assert any(said in r.fault for r in rounds)

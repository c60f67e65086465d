"""The study of DISCO: recorded drafts give the very rounds of the live loop, drawn ones their
distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import Decoder
from draftwise.core.drafts import Signals
from draftwise.core.sampling import Sampling
from draftwise.measure.trace import Costs
from draftwise.measure.trace.costs import DrafterCosts
from draftwise.models.load import load_model, load_tokenizer
from draftwise.policies.classifiers.stopping import Disco, save
from studies.speed.disco.record import Recorded, drawn, record
from studies.speed.disco.rounds import (
    Rounds,
    Scored,
    by_index,
    chances,
    heuristic,
    oracle,
    predicted,
    scored,
    stopping,
    walk,
)
from tests.effort import some, thorough

NEW, LONGEST, EOS = 24, 9, frozenset({2, 7})


@pytest.fixture(scope="module")
def models(world: Path) -> tuple[Any, Any, Any]:
    """Target and drafter that agree now and then, and a tokenizer."""
    target, drafter = (load_model(str(world / name), dtype="float32") for name in ("target", "drafter"))
    own = drafter.state_dict()
    mixed = {name: 0.85 * weight + 0.15 * own[name] for name, weight in target.state_dict().items()}
    drafter.load_state_dict(mixed)
    return target, drafter, load_tokenizer(str(world / "target"))


@pytest.fixture(scope="module")
def scorer() -> Disco:
    rng = np.random.default_rng(1)
    shapes = ((6, 12), (6,), (1, 6), (1,))
    scale = np.array([1.0] * 10 + [1.0, 0.02], np.float32)
    first, bias, out, shift = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return Disco(first * scale, bias, out, shift)


def prompts(n: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 23, size=rng.integers(3, 9)).tolist() for _ in range(n)]


def live(models: Any, ids: list[int], sampling: Sampling, policy: str) -> tuple[list[int], Rounds]:
    target, drafter, tokenizer = models
    decoder = Decoder.from_pretrained(target, tokenizer=tokenizer, drafters=[drafter], policy=policy)
    tokens, found = list[int](), Rounds()
    for round in decoder.loop.run([ids], sampling):
        tokens += round.tokens
        found.drafted.append(round.drafted)
        found.accepted.append(round.accepted)
    return tokens, found


def recorded(models: Any, ids: list[int], text: list[int], rng: torch.Generator | None = None) -> Recorded:
    target, drafter, _ = models
    about = {"category": "any", "validation": False}
    return record(target, drafter, ids, text, longest=LONGEST, budget=NEW, rng=rng, **about)


def test_chances_are_those_of_the_classifier(scorer: Disco) -> None:
    top = np.sort(np.random.default_rng(2).dirichlet(np.ones(12)))[::-1][:10]
    now = Signals(top[0], top[1], 1.0, top[0], 17, tuple(top))
    x = np.array([*top, -(top * np.log(top)).sum(), 17.0], np.float32)
    assert chances(scorer, x[None])[0] == pytest.approx(scorer.score(now), abs=1e-6)


@pytest.mark.parametrize(
    ("threshold", "length"), some([(0.0, 4), (0.3, 9), (0.5, 9), (0.6, 5), (0.99, 9)], 2)
)
def test_greedy_rounds_are_those_of_the_loop(
    models: Any, scorer: Disco, tmp_path: Path, threshold: float, length: int
) -> None:
    save(scorer, tmp_path / "model.safetensors")
    policy = f"disco?model={tmp_path}&threshold={threshold}&length={length}"
    sampling, seen = Sampling(max_new_tokens=NEW, eos=EOS), Rounds()
    for ids in prompts(8):
        text, rounds = live(models, ids, sampling, policy)
        one = recorded(models, ids, text)
        one.save(tmp_path / "text.npz")
        again = Recorded.load(tmp_path / "text.npz")
        assert walk(scored(again, scorer), stopping(threshold, length)) == rounds
        seen.drafted += rounds.drafted
        seen.accepted += rounds.accepted
    assert sum(seen.accepted) > 20 and len(set(seen.drafted)) > 1  # else the drafts say little


@thorough
def test_drawn_rounds_have_the_law_of_the_loop(models: Any, scorer: Disco, tmp_path: Path) -> None:
    save(scorer, tmp_path / "model.safetensors")
    found: dict[str, list[tuple[float, ...]]] = {"live": [], "recorded": []}
    for seed, ids in enumerate(prompts(60)):
        sampling = Sampling(max_new_tokens=NEW, temperature=1.0, seed=seed)
        text, rounds = live(models, ids, sampling, f"disco?model={tmp_path}&threshold=0.45&length=6")
        rng = torch.Generator().manual_seed(seed)
        again = walk(scored(recorded(models, ids, text, rng), scorer), stopping(0.45, 6))
        for name, one in (("live", rounds), ("recorded", again)):
            found[name].append((len(one.drafted), sum(one.drafted), sum(one.accepted)))
    a, b = (np.array(found[name], float) for name in ("live", "recorded"))
    error = np.sqrt(a.var(0) / len(a) + b.var(0) / len(b))
    assert (np.abs(a.mean(0) - b.mean(0)) < 3.5 * error).all()
    assert (a.mean(0) > 1.0).all() and (a != b).any()


def test_a_draw_has_the_chances_of_its_weights() -> None:
    rng, weights = torch.Generator().manual_seed(0), torch.tensor([0.0, 1.0, 3.0, 0.0])
    picks = torch.bincount(drawn(weights.repeat(8000, 1), rng), minlength=4) / 8000
    assert picks[0] == picks[3] == 0.0 and float(picks[2]) == pytest.approx(0.75, abs=0.02)


def simple(accepted: list[bool], budget: int = 99) -> Scored:
    n = len(accepted)
    return Scored(np.full(n, 0.9), np.full((n + 1, 7), 0.2), np.array(accepted), budget)


def test_rules_on_a_text_that_is_known() -> None:
    text = simple([True, True, False, True, False, False])
    assert walk(text, oracle(9)) == Rounds([2, 1, 0], [2, 1, 0])
    assert walk(text, oracle(1)) == Rounds([1, 0, 1, 0], [1, 0, 1, 0])
    assert walk(text, stopping(0.0, 3)) == Rounds([3, 3, 3], [2, 1, 0])
    assert walk(text, stopping(0.5, 9)) == Rounds([4, 3, 2], [2, 1, 0])  # one wrong token more than the first
    assert walk(simple([True] * 3, budget=3), stopping(0.0, 9)) == Rounds([2], [2])
    (grown,) = heuristic([text], 1, 9)
    assert grown == Rounds([1, 3, 2, 1], [1, 0, 1, 0])


def test_time_is_that_of_passes_and_drafts() -> None:
    costs = Costs(passes=(1.0, 1.5), drafters={"d": DrafterCosts(first=0.2, step=0.1)})
    assert Rounds([2, 0], [1, 0]).seconds(costs, "d") == pytest.approx(2.0 + 0.2 + 0.2 + 1.0)


def test_leviathans_factor_and_the_index() -> None:
    assert predicted(0.5, 2, 0.1) == pytest.approx((1 + 0.5 + 0.25) / 1.2)
    assert predicted(1.0, 4, 0.5) == pytest.approx(5 / 3)
    parts = by_index([[1, 2, 3, 4], [5, 6]], 2)
    assert [part.tolist() for part in parts] == [[1, 2, 5], [3, 4, 6]]

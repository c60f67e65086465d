"""A class that limits a token's step in wide passes alone is read as its own decoding reads it."""

from __future__ import annotations

from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm
from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.errors import UserError
from draftwise.models import limits, probe
from draftwise.models.probe.small import VOCAB
from draftwise.models.runner import PassInput
from draftwise.models.runner.states import StateRunner
from draftwise.targets.hf import HFTarget
from tests.architectures.cases import Case, build, own_text
from tests.architectures.judge import EQUAL, Guesser, run
from tests.core.turns import Anyone

NEW = 12
LIMIT = 0.5  # steps of the random models are about 0.01 and more
NAMES = ["nemotron_h", "zamba2"]
# Beside short ones, prompts whose last piece of 8 tokens would be one token long.
PROMPTS = [[3 + (7 * k + n) % (VOCAB - 4) for k in range(n)] for n in (1, 2, 8, 9, 17, 20)]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@cache
def model(name: str) -> Any:
    made = build(Case(name, name), lively=False)
    for module in made.modules():
        if hasattr(module, limits.NAME):
            module.time_step_limit = (LIMIT, inf)
    return made


@cache
def truth(name: str) -> dict[tuple[int, ...], list[int]]:
    return {tuple(p): own_text(model(name), p, NEW) for p in PROMPTS}


def team(name: str) -> dict[str, Guesser]:
    return {"good": Guesser(truth(name), 0.15), "bad": Guesser(truth(name), 1.0)}


ARMS = [Arm("none", 0), *(Arm(drafter, n) for drafter in ("good", "bad") for n in (1, 4))]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_the_models_own(name: str, batch: int) -> None:
    assert run(model(name), dict(truth(name)), PROMPTS, team(name), ARMS, batch) == (EQUAL, "")


def test_with_limits_everywhere_the_text_would_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tests above can fail, and the probe sees it."""
    monkeypatch.setattr(probe, "limited", lambda model: {})
    with pytest.raises(UserError, match=r"its logits are off by [0-9.]+ of their spread"):
        HFTarget(model("nemotron_h"))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_a_part_of_the_next_prompt(name: str) -> None:
    made = model(name)
    target, policy = HFTarget(made, chunk=8), Anyone(tuple(ARMS))
    loop = Loop(target, team(name), policy, policy)
    first, more = PROMPTS[3], [11, 5, 30]
    request = loop.add(first, Sampling(max_new_tokens=NEW), keep=True)
    texts = [[token for round in iter(loop.step, []) for token in round[0].tokens]]
    loop.extend(request, more, Sampling(max_new_tokens=NEW))
    texts.append([token for round in iter(loop.step, []) for token in round[0].tokens])
    assert texts[0] == truth(name)[tuple(first)]
    assert texts[1] == own_text(made, [*first, *texts[0], *more], NEW)


def test_a_longer_prompt_takes_over_no_more_than_the_shorter_one() -> None:
    """It begins with the whole text of an open one, of which the answer was written without limits."""
    made, first = model("nemotron_h"), PROMPTS[5]
    policy = Anyone((Arm("none", 0),))
    loop = Loop(target := HFTarget(made, chunk=8), {}, policy, policy)
    loop.add(first, Sampling(max_new_tokens=NEW))
    written = [token for _ in range(NEW - 1) for round in loop.step() for token in round.tokens]
    longer = [*first, *written]
    second = loop.add(longer, Sampling(max_new_tokens=NEW))
    found = [
        token for round in iter(loop.step, []) for r in round if r.request == second.id for token in r.tokens
    ]
    assert found == own_text(made, longer, NEW)
    assert 0 < target.info.reused.get(second.id, len(first)) <= len(first)


def test_a_module_has_its_limits_again_whatever_happens() -> None:
    made = model("nemotron_h")
    rows = StateRunner(made, free=True)
    rows.open(0)
    rows.prompts[0] = 2
    with torch.inference_mode(), pytest.raises(IndexError):
        rows.forward(PassInput(0, [[5, 6, 10 * VOCAB]], 1))
    assert {module.time_step_limit for module in rows.limits} == {(LIMIT, inf)}


def test_models_without_a_limit_are_left_alone() -> None:
    assert not limits.limited(build(Case("mamba2", "mamba2"), lively=False))

"""A model on a device of its own in name only: texts where policies learn while the next pass runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.models.runner.executors.cuda_graphs import CudaGraphs
from draftwise.targets.hf import HFTarget
from tests.core.turns import group_tokens, loop_with
from tests.recording import recorder
from tests.tiny import VOCAB, model

PROMPTS = [[3 + k, 4, 5, 6, 3 + k, 4, 5] for k in range(4)]
SETTINGS = {
    "greedy": Sampling(max_new_tokens=16),
    "penalised": Sampling(max_new_tokens=16, repetition_penalty=1.2),
    "sampled": Sampling(max_new_tokens=16, temperature=0.9, seed=3),
}


@pytest.fixture(autouse=True)
def no_threads_to_adapt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: on a CPU a trial of other threads would run passes between those of a text."""
    monkeypatch.setattr(HFTarget, "_adapt", lambda self, requests: None)


class AsynchronousTarget(HFTarget):
    """Computes at its launch."""

    is_asynchronous = True


@cache
def texts(kind: type[HFTarget], policy: str, sampling: Sampling, batch: int) -> list[list[int]]:
    """What a tiny model writes as graphs whose replays overwrite each other, with a bad drafter."""
    target = kind(model("llama", scale=5.0, layers=1))
    target.runner.use(CudaGraphs(target.runner, capture=recorder(), buffers=(8, 64)))
    bad = LMDrafter(model("llama", seed=9, layers=1), VOCAB)
    drafters: dict[str, Any] = {"bad": bad, "ngram": NgramDrafter()}
    loop = loop_with(target, drafters, policy)
    assert loop.barrier.is_late == (kind is AsynchronousTarget)
    rounds = list(loop.run(PROMPTS, sampling, batch=batch))
    assert not any(round.fault for round in rounds), [round.fault for round in rounds]
    return group_tokens(rounds)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("policy", ["static-3?drafter=bad", "auto"])
@pytest.mark.parametrize("how", ["greedy", "penalised"])
def test_texts_are_those_of_plain_decoding(how: str, policy: str, batch: int) -> None:
    plain = texts(HFTarget, "none", SETTINGS[how], 1)
    assert texts(AsynchronousTarget, policy, SETTINGS[how], batch) == plain


@pytest.mark.parametrize("batch", [1, 4])
def test_sampled_texts_are_those_of_the_same_decisions(batch: int) -> None:
    policy = "static-3?drafter=bad"
    at_once = texts(HFTarget, policy, SETTINGS["sampled"], batch)
    assert texts(AsynchronousTarget, policy, SETTINGS["sampled"], batch) == at_once

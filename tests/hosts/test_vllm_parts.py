"""What Draftwise takes from vLLM's insides and puts right there, on stand-ins for them."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwise.hosts.vllm.report import read, sweep
from draftwise.hosts.vllm.runner import Probabilities, Step, attach, patch_faults

SAMPLER, RUNNER = "vllm.v1.sample.rejection_sampler", "vllm.v1.worker.gpu_model_runner"


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> Any:
    parts = name.split(".")
    for k in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:k]), ModuleType(".".join(parts[:k])))
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def broken_expand(x: Tensor, ends: Tensor, count: int, replace_from: int = 0, replace_to: int = 0) -> Tensor:
    return x.new_zeros(count)


def broken_top(logits: Tensor, k: Tensor, p: Any) -> Tensor:
    k.max()  # fails for none
    return logits


def right_expand(x: Tensor, ends: Tensor, count: int, replace_from: int = 0, replace_to: int = 0) -> Tensor:
    return x[torch.bucketize(torch.arange(count), ends, right=True)]


def test_what_is_wrong_is_found_and_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(monkeypatch, SAMPLER, expand_batch_to_tokens=broken_expand, apply_top_k_top_p=broken_top)
    assert patch_faults(torch.zeros(1)) == ["expand_batch_to_tokens", "apply_top_k_top_p"]
    spread = made.expand_batch_to_tokens(torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 3]), 3, 0, 1)
    assert spread.tolist() == [0.5, 0.5, 1.0]
    assert made.apply_top_k_top_p(torch.zeros(0, 4), torch.zeros(0), None).shape == (0, 4)
    assert made.apply_top_k_top_p(torch.ones(1, 4), torch.ones(1), None).tolist() == [[1.0] * 4]
    assert patch_faults(torch.zeros(1)) == []


def test_what_is_right_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(
        monkeypatch,
        SAMPLER,
        expand_batch_to_tokens=right_expand,
        apply_top_k_top_p=lambda logits, k, p: logits,
    )
    assert patch_faults(torch.zeros(1)) == [] and made.expand_batch_to_tokens is right_expand
    assert not module(monkeypatch, SAMPLER).__dict__.get("expand_batch_to_tokens")
    assert patch_faults(torch.zeros(1)) == []


def test_the_runner_tells_before_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    class GPUModelRunner:
        def __init__(self, drafter: Any) -> None:
            self.drafter = drafter

        def propose_draft_token_ids(self, scheduler_output: Any, sampled: Any) -> Any:
            return self.drafter, scheduler_output, sampled

    module(monkeypatch, RUNNER, GPUModelRunner=GPUModelRunner)
    assert attach() and attach()
    heard: list[Step] = []
    ours = SimpleNamespace(listen=heard.append)
    assert GPUModelRunner(ours).propose_draft_token_ids("step", [[1]]) == (ours, "step", [[1]])
    assert [step.scheduled for step in heard] == ["step"]
    assert GPUModelRunner("another").propose_draft_token_ids("step", [])[0] == "another"
    assert len(heard) == 1


def test_a_step_knows_budgets_ends_and_what_was_verified() -> None:
    asked = SimpleNamespace(max_tokens=10, stop_token_ids=[7], eos_token_id=2, ignore_eos=False)
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(
            req_ids=["a", "b"], num_tokens_no_spec=[15, 95], num_prompt_tokens=[8, 90]
        ),
        requests={
            "a": SimpleNamespace(sampling_params=asked),
            "b": SimpleNamespace(sampling_params=SimpleNamespace(**vars(asked) | {"ignore_eos": True})),
        },
    )
    step = Step(runner, SimpleNamespace(scheduled_spec_decode_tokens={"a": [1, 2, 3]}))
    first, second = step.rows([[4, 5], [6]], np.arange(200).reshape(2, 100), 100)
    assert first.text(12) == [12, 13, 14]
    assert (first.key, first.room, first.verified, first.ends) == ("a", 3, 3, frozenset({2, 7}))
    assert (second.key, second.room, second.verified, second.ends) == ("b", 5, 0, frozenset({7}))
    assert step.is_alive("a") and not step.is_alive("c")


def test_probabilities_are_those_of_the_drafted_tokens_by_row() -> None:
    sampler = torch.nn.Identity()
    raw = Probabilities(SimpleNamespace(rejection_sampler=sampler))
    distribution = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1 / 3] * 3, [0.9, 0.05, 0.05]])
    told = SimpleNamespace(
        target_logits_indices=torch.tensor([0, 1, 3]),
        draft_token_ids=torch.tensor([1, 2, 0], dtype=torch.int32),
        num_draft_tokens=[2, 0, 1],
    )
    raw._record(sampler, (told, None, distribution.log()))
    rows = raw.take()
    assert [pytest.approx(row) for row in rows] == [[0.25, 0.7], [], [0.9]] and raw.take() == []


def test_reports_of_the_dead_are_swept(tmp_path: Any) -> None:
    old, new = tmp_path / "vllm-a-0.json", tmp_path / "vllm-b-0.json"
    for path in (old, new):
        path.write_text("{}")
    os.utime(old, (0, 0))
    sweep(tmp_path)
    assert not old.exists() and new.exists() and read(old) == {}

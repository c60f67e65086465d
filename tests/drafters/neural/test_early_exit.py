"""The target's own first layers draft from its own cache, and leave it as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.roles import GradeJob
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.early_exit import EarlyExitDrafter, first_layers
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import UserError
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone
from tests.drafters.neural.heads import check_sampled, target
from tests.drafters.neural.test_eagle import opened, read_on, texts_of
from tests.effort import some
from tests.exactness.test_exact_hf import distribution_of
from tests.targets.test_hf import prompts
from tests.targets.test_trees import held
from tests.tiny import VOCAB, model, own_text

ARMS = (Arm("exit", 3), Arm("exit", 3, width=4), Arm("ngram", 3), Arm("lm", 2), Arm("none", 0))


def loop_of(made: Any, arms: tuple[Arm, ...] = ARMS, **options: Any) -> Loop:
    reads = HFTarget(made, chunk=8)
    team: dict[str, Any] = {"exit": EarlyExitDrafter(reads, **options), "ngram": NgramDrafter()}
    policy = Anyone(arms)
    return Loop(reads, team | {"lm": LMDrafter(model("llama", seed=9), VOCAB)}, policy, policy)


NAMES = ["llama", "gpt2", "gpt-neox", "qwen3-window", "gemma3-window", "mistral-window"]


@pytest.mark.parametrize("name", some(NAMES, 2))
def test_greedy_text_is_the_models_own(name: str) -> None:
    made = target(name)
    own = [own_text(made, p, 30) for p in prompts()]
    for batch in (1, 3):
        texts, rounds = texts_of(loop_of(made), 30, batch)
        assert texts == own
        drafted = [r for r in rounds if r.arm.drafter == "exit" and r.drafted]
        assert any(r.accepted for r in drafted) and any(r.accepted < r.drafted for r in drafted)


@pytest.mark.parametrize("settings", some(["shaped", "penalties"], 2))
def test_the_distribution_is_the_targets(settings: str) -> None:
    made = target(scale=5.0)
    loop = loop_of(made, (Arm("exit", 3), Arm("exit", 3, width=4), Arm("lm", 2)))
    check_sampled(loop, distribution_of(made), settings, beside=60)


def test_the_targets_cache_is_left_as_it_was() -> None:
    reads, requests = opened(target(), [[3, 4, 5], list(range(2, 22))])
    drafter = EarlyExitDrafter(reads)
    rows = {r.id: reads.runner.request_ids.index(r.id) for r in requests}
    sizes = [len(r.tokens) - 1 for r in requests]
    before = [held(reads, rows[r.id], n) for r, n in zip(requests, sizes, strict=True)]
    for width in (1, 4):
        assert all(draft.tokens for draft in drafter.draft([Job(r, 4, width=width) for r in requests]))
        assert [reads.runner.cached_lengths[rows[r.id]] for r in requests] == sizes
        for r, n, was in zip(requests, sizes, before, strict=True):
            assert all(map(torch.equal, held(reads, rows[r.id], n), was))
    back = Job(requests[0], 4)
    back.request.tokens.pop()  # a place before what the target check_sampled: nothing may be written there
    assert drafter.draft([back]) == [Draft()] and not drafter.ready(back.request)


def test_a_draft_is_what_the_first_layers_write() -> None:
    made = target()
    reads, requests = opened(made, [[3, 4, 5], list(range(2, 22))])
    drafter, short = EarlyExitDrafter(reads), first_layers(made, 1)
    for draft, request in zip(drafter.draft([Job(r, 4, rows=True) for r in requests]), requests, strict=True):
        text = list(request.tokens)
        for row, token in zip(draft.rows, draft.tokens, strict=True):
            with torch.inference_mode():
                wanted = short(torch.tensor([text])).logits[0, -1]
            torch.testing.assert_close(row, wanted)
            assert token == int(wanted.argmax())
            text.append(token)
    assert len(made.get_decoder().layers) == 2 and made.config.num_hidden_layers == 2


def test_grades_are_those_of_the_first_layers() -> None:
    made = target()
    reads, requests = opened(made, [[3, 4, 5], list(range(2, 22))])
    drafter, short = EarlyExitDrafter(reads), first_layers(made, 1)
    read_on(reads, requests, 9)
    hits = 0.0
    jobs = [GradeJob(r, r.prompt_length, [1.0] * r.position) for r in requests]
    for job, grades in zip(jobs, drafter.grade(jobs), strict=True):
        tokens = job.request.tokens
        with torch.inference_mode():
            picks = short(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
        right = [float(picks[j - 1] == tokens[j]) for j in range(job.start, len(tokens))]
        assert [g.accept for g in grades] == right
        hits += sum(right)
    assert hits


def test_layers_that_are_not_there_are_refused() -> None:
    reads = HFTarget(target())
    for layers in (2, -1):
        with pytest.raises(UserError, match=f"layers={layers}: this target has 2 layers, exit after 1 to 1"):
            EarlyExitDrafter(reads, layers=layers)

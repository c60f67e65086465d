"""A part of the sweep over all causal LM classes; `python -m studies.exactness.sweep` is the whole."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from draftwise.errors import DraftwiseWarning
from draftwise.models.runner import ModelRunner
from draftwise.targets.hf import HFTarget
from tests.effort import THOROUGH, some

from .cases import Case, cases
from .judge import CRASH, DIFFERENT, EQUAL, REFUSED, judge

PART, PARTS = map(int, os.environ.get("DRAFTWISE_SWEEP", "0/24" if THOROUGH else "0/96").split("/"))
SHARD = [case for case in cases() if case.shard(PARTS) == PART]


def forgets(patch: pytest.MonkeyPatch) -> None:
    """The newest token of each row is lost from the cache."""
    commit = HFTarget.commit

    @torch.inference_mode()
    def broken(self: HFTarget, batch: Any) -> None:
        commit(self, batch)
        for layer in self.runner.cache._rows:
            for row, held in enumerate(self.runner.cached_lengths):
                layer.keys[row, :, held - 1] = layer.values[row, :, held - 1] = 0

    patch.setattr(HFTarget, "commit", broken)


def misplaced(patch: pytest.MonkeyPatch) -> None:
    """Tokens after the first pass are told places one too far."""
    places = ModelRunner._places

    def broken(self: ModelRunner, starts: list[int], *rest: Any) -> Any:
        positions, mask = places(self, starts, *rest)
        return positions + (min(starts) > 0), mask

    patch.setattr(ModelRunner, "_places", broken)


@pytest.mark.parametrize("mistake", [forgets, misplaced])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_broken_cache_is_seen(name: str, mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    verdict = judge(Case(name, name), ["alone", "uneven"])
    assert verdict.ways == {"alone": DIFFERENT, "uneven": DIFFERENT}


def test_every_way_of_decoding_is_tried() -> None:
    verdict = judge(Case("gpt2", "gpt2"))
    assert set(verdict.ways.values()) == {EQUAL} and len(verdict.ways) > 6


APART = ["gpt_neo", "roformer", "bart", "mvp", "xglm", "bloom", "falcon/alibi"]


@pytest.mark.parametrize("name", some(APART, 2))
def test_models_that_count_for_themselves_are_read_one_by_one(name: str) -> None:
    """Their batches were wrong or crashed; ALiBi was refused."""
    case = next(case for case in cases() if case.name == name)
    with pytest.warns(DraftwiseWarning, match="a pass of its own"):
        verdict = judge(case, ["alone", "chains", "uneven", "even", "models"])
    assert set(verdict.ways.values()) == {EQUAL}, verdict


@pytest.mark.parametrize("name", ["cpmant", "openai-gpt", "reformer", "prophetnet"])
def test_what_cannot_rewind_is_refused_by_name(name: str) -> None:
    """They crashed, or wrote other text."""
    verdict = judge(next(case for case in cases() if case.name == name))
    assert verdict.ways == {"alone": REFUSED}
    assert f"{verdict.kind} cannot be read in pieces and rewound" in verdict.why


TEXT = ["gemma3", "gemma4", "gemma4_unified", "moshi", "granitemoehybrid/attention-only", "mpt/no-cache"]


@pytest.mark.parametrize("name", some(TEXT, 2))
def test_what_reads_text_alone_is_not_refused(name: str) -> None:
    verdict = judge(next(case for case in cases() if case.name == name), ["alone", "chains", "uneven"])
    assert set(verdict.ways.values()) == {EQUAL}, verdict


@pytest.mark.parametrize("case", SHARD, ids=lambda case: case.name)
def test_no_text_is_another_and_nothing_crashes(case: Case) -> None:
    """A fixed part of all classes, four times as many in a thorough run; `DRAFTWISE_SWEEP=3/24`: another."""
    verdict = judge(case)
    assert verdict.word not in (DIFFERENT, CRASH), verdict

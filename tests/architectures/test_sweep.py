"""A part of the sweep over all causal LM classes; `python -m studies.exactness.sweep` is the whole."""

from __future__ import annotations

import os

import pytest

from draftwise.errors import DraftwiseWarning
from tests.effort import THOROUGH, some

from .broken import MISTAKES
from .cases import Case, cases
from .judge import CRASH, DIFFERENT, EQUAL, REFUSED, judge

PART, PARTS = map(int, os.environ.get("DRAFTWISE_SWEEP", "0/24" if THOROUGH else "0/96").split("/"))
SHARD = [case for case in cases() if case.shard(PARTS) == PART]


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_broken_cache_is_seen(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[mistake](monkeypatch)
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

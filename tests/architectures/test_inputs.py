"""A part of the sweep over classes that read more than text; `python -m studies.exactness.inputs` is all."""

from __future__ import annotations

import os

import pytest

from draftwise.models.prompted import WAYS, Prompted
from tests.effort import THOROUGH

from .inputs.cases import Case, cases
from .inputs.judge import judge
from .judge import CRASH, DIFFERENT, EQUAL, REFUSED

PART, PARTS = map(int, os.environ.get("DRAFTWISE_SWEEP", "0/12" if THOROUGH else "0/36").split("/"))
SHARD = [case for case in cases() if case.shard(PARTS) == PART]


def named(name: str) -> Case:
    return next(case for case in cases() if case.name == name)


@pytest.mark.parametrize("name", ["marian", "qwen3_vl"])
def test_a_draft_that_stays_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that keeps what was rejected, where no trial looks."""
    monkeypatch.setattr(WAYS["crop"], "cut", lambda self, cached, length: length)
    monkeypatch.setattr("draftwise.models.prompted.verdicts.load", lambda *_: "crop")
    assert judge(named(name), ["alone"]).word in (DIFFERENT, CRASH)


def test_a_position_that_is_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    carried = Prompted._carried

    def off(self: Prompted, length: int) -> dict[str, object]:
        kwargs = carried(self, length)
        return kwargs | {"position_ids": kwargs["position_ids"] + (length - self.length > 1)}

    monkeypatch.setattr(Prompted, "_carried", off)
    monkeypatch.setattr("draftwise.models.prompted.verdicts.load", lambda *_: "crop")
    assert judge(named("qwen2_vl"), ["alone"]).word == DIFFERENT


def test_every_way_is_tried() -> None:
    assert judge(named("llava")).ways == {"alone": EQUAL, "batch": EQUAL, "several": EQUAL}


def test_steps_are_limited_in_the_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the class's own decoding does it; with limits everywhere the trial refuses it."""
    assert judge(named("nemo_speechlm"), ["alone"]).ways == {"alone": EQUAL}
    monkeypatch.setattr("draftwise.models.prompted.limited", lambda model: {})
    monkeypatch.setattr("draftwise.models.prompted.verdicts.load", lambda *_: None)
    assert judge(named("nemo_speechlm"), ["alone"]).ways == {"alone": REFUSED}


@pytest.mark.parametrize("case", SHARD, ids=lambda case: case.name)
def test_no_text_is_another_and_nothing_crashes(case: Case) -> None:
    """A fixed part of all classes, more in a thorough run; `DRAFTWISE_SWEEP=3/36` is another."""
    verdict = judge(case)
    assert verdict.word not in (DIFFERENT, CRASH), verdict

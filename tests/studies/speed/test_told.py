"""What `auto` would gain if it were told more: what is told arrives, and nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from draftwise.core.arms import Context
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.policies.auto.parts import LENGTHS
from draftwise.policies.catalogue.auto import team
from studies.speed import told
from studies.speed.told import Told, on_prompt
from tests.measure.trace.sims import recorded


@pytest.mark.parametrize("kind", [NgramDrafter, SuffixDrafter])
def test_a_lookup_is_tested_on_the_end_of_the_prompt_alone(kind: type[NgramDrafter | SuffixDrafter]) -> None:
    repeated = [1, 2, 3, 4, 5] * 20
    tests = on_prompt(repeated, kind())
    assert len(tests) == told.LAST and all(accept == 1.0 for _, accepts in tests for accept in accepts)
    assert on_prompt([*range(100, 200)], kind()) == [], "nothing occurs twice"
    wrong = on_prompt([7, 8, 7, 9], kind())
    assert wrong == [(1, (0.0,))], "after the second 7 it copies the 8"


def test_what_is_told_counts_for_this_text_alone() -> None:
    policy = Told(*team(["ngram", "suffix"], LENGTHS), length=17.0)
    policy.shown = {"ngram": [(2, (1.0, 1.0))] * 20}
    skill = policy.skills[0]
    tested, before = [[*row] for row in skill.tested], [*skill.survival(1, 2)]
    policy.choose(Context(5, 1, 0, 0, {}, frozenset(), 10, 3), Random(0))
    assert policy.answer == 17.0 and skill.tested == tested
    assert skill.survival(5, 2)[0] > before[0] and skill.survival(1, 2) == before


def test_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded(tmp_path / "trace", names=("good",), n=6, length=16)
    monkeypatch.setattr(sys, "argv", ["told", str(trace.folder), "--costs", "c=0.1", "--orders", "2"])
    told.main()
    shown = capsys.readouterr().out
    assert "told: length" in shown and "told: prompt" in shown
    assert shown.endswith("| all | all | 1.0000 +- 0.0000 |\n"), "no lookup was recorded"

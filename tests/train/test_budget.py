"""A training by the clock: answers and steps share the minutes, and a resumed run has those that are left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftwise.cli.progress import TimeLeft
from draftwise.train import drafter, texts
from draftwise.train.results import verdict
from draftwise.train.settings import DrafterRun
from draftwise.train.steps import Plan, progress
from tests.train.world import Options


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a training believes to have passed."""
    now = [0.0]
    monkeypatch.setattr(texts, "monotonic", lambda: now[0])
    return now


def test_steps_and_rate_follow_the_time(clock: list[float], tmp_path: Path) -> None:
    mine = texts.Budget(10.0, tmp_path / "seconds.json")
    clock[0] = 240.0  # the answers' share
    plan = Plan(1000, mine)
    assert plan.place(0) == 0.0 and not plan.is_over(0)
    clock[0] = 240.0 + (570.0 - 240.0) / 2
    assert plan.place(7) == pytest.approx(500.0)
    assert plan.total(7) == 14
    assert plan.left == {"left": pytest.approx(165.0)}
    clock[0] = 570.0
    assert plan.is_over(1) and not plan.is_over(0), "one step at least"
    mine.save()
    assert texts.Budget(10.0, tmp_path / "seconds.json").used == pytest.approx(0.95)
    (tmp_path / "seconds.json").write_text("no number")
    assert texts.Budget(10.0, tmp_path / "seconds.json").before == 0.0


def test_a_resumed_run_is_where_it_was_in_the_schedule(clock: list[float], tmp_path: Path) -> None:
    first = texts.Budget(10.0, tmp_path / "seconds.json")
    clock[0] = 60.0  # all had an answer sooner than they might
    plan = Plan(1000, first)
    clock[0] = 300.0
    first.save()
    resumed = Plan(1000, texts.Budget(10.0, tmp_path / "seconds.json"))
    assert resumed.place(7) == pytest.approx(plan.place(7)) == pytest.approx(1000 * 240 / 510)


def test_without_minutes_the_steps_count() -> None:
    plan = Plan(5, None)
    assert [plan.is_over(n) for n in (0, 4, 5)] == [False, False, True]
    assert (plan.place(3), plan.total(3), plan.left) == (3, 5, {})


def test_held_out_prompts_are_answered_first_and_a_run_ends_in_time(
    world: Path, tmp_path: Path, options: Options, clock: list[float]
) -> None:
    seen: list[tuple[str, int, int]] = []

    def tell(what: str, done: int, total: int, left: float | None = None) -> None:
        seen.append((what, done, total))
        clock[0] += 0.5

    given = options(start=str(world / "drafter"), answers="", temperatures=(0.0,), together=2, minutes=1.0)
    results = drafter.train(DrafterRun(**given), tmp_path / "made", tell)
    answered = [row for row in seen if row[0] == "Target answers"]
    assert answered[0][2] == 24 and answered[-1][1] < 24, "the time for answers was over before all had one"
    lines = (tmp_path / "made" / "training" / "answers.jsonl").read_text().splitlines()
    assert len(lines) - 1 >= 3, "six held-out prompts, two a batch"
    assert {len(json.loads(line)) for line in lines[1:]} == {2}
    assert results["steps"] == results["log"][-1]["step"] > 1
    trained = [row for row in seen if row[0].startswith("Training")]
    assert "loss" in trained[-1][0] and "of 5 tokens accepted on held-out prompts" in trained[-1][0]
    assert set(results["speed"]) == {"plain", "lookups", "trained"}
    assert min(results["speed"].values()) > 0


def test_what_a_draft_is_worth_is_told_while_it_learns() -> None:
    assert progress([]) == ""
    log = [{"step": 1, "agreement 1": 0.5, "agreement 2": 0.5}, {"step": 2, "loss": 1.25}]
    assert progress(log) == ", loss 1.250, 0.75 of 2 tokens accepted on held-out prompts"
    assert progress([{"step": 0, "overlap": 0.1, "agreement": 0.5}]).startswith(", 0.97 of 5 tokens")
    pace = TimeLeft()
    pace.left("Training, loss 3", 0, 10)
    assert pace.left("Training, loss 2", 5, 10) is not None, "news does not begin a phase again"


def test_the_verdict_compares_with_lookups() -> None:
    assert "faster than lookups alone (1.50)" in verdict({"plain": 5.0, "lookups": 10.0, "trained": 15.0})
    assert "slower than lookups alone (0.50)" in verdict({"plain": 5.0, "lookups": 10.0, "trained": 5.0})
    assert "as fast as lookups alone (1.01)" in verdict({"plain": 5.0, "lookups": 10.0, "trained": 10.1})

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from draftwise.cli.demo import pick
from draftwise.data import spec_bench

from .conftest import Letters, Models, Result, after

Run = Callable[..., Result]
SMALL = ("demo", "--prompts", "3", "--max-new-tokens", "20")


@pytest.fixture(autouse=True)
def long_window(models: Models) -> None:
    models.max_length = 100_000


def test_pick_takes_the_categories_in_turn() -> None:
    questions = spec_bench()
    assert len({q.category for q in pick(questions, 13)}) == 13
    assert set(Counter(q.category for q in pick(questions, 26)).values()) == {2}
    assert sorted(q.question_id for q in pick(questions, 999)) == sorted(q.question_id for q in questions)


def test_same_text_both_ways(models: Models, run: Run) -> None:
    status, out, err = run(*SMALL)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    first = [line.split()[0] for line in lines[:5]]
    assert first == ["category", "coding", "translation", "summarization", "all"]
    assert "3/3" in lines[4]
    assert "target" in lines[4]
    assert "Same text in 3 of 3 prompts" in lines[5]
    assert len(models.targets) == 1, "one model serves both sides"


def test_json_adds_up(models: Models, run: Run) -> None:
    status, out, _ = run(*SMALL, "--json", "--drafters", "suffix", "--policy", "static-5")
    row = json.loads(out)
    assert status == 0
    assert (row["target"], row["drafters"], row["policy"]) == ("zoo:target", ["suffix"], "static-5")
    assert row["identical"] is True
    assert [p["new_tokens"] for p in row["prompts"]] == [20, 20, 20]
    for side in ("plain", "adaptive"):
        assert row["seconds"][side] == pytest.approx(sum(p["seconds"][side] for p in row["prompts"]))
    assert row["ratio"] == pytest.approx(row["seconds"]["plain"] / row["seconds"]["adaptive"])
    assert all(0 < p["by_drafter"]["suffix"] < 20 for p in row["prompts"])


def test_a_different_text_is_found(models: Models, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that believes its drafter is what this check is there for."""

    def believe(draft, scores, rng, path, over=None):  # type: ignore[no-untyped-def]
        path += range(len(draft.tokens))
        return scores.choice(len(draft.tokens) - 1)

    monkeypatch.setattr("draftwise.core.turn.walk", believe)
    status, out, _ = run(*SMALL, "--drafters", "ngram", "--policy", "static-5")
    assert status == 1
    assert "Same text in 0 of 3 prompts" in out


def test_a_prompt_that_does_not_fit_is_left_out(models: Models, run: Run) -> None:
    sizes = [len(Letters()(question.text)["input_ids"]) for question in pick(spec_bench(), 3)]
    models.max_length = max(sizes) - 1
    status, out, err = run(*SMALL)
    assert status == 0
    assert "2 of 2 prompts" in out
    assert err.count("left out:") == 1
    assert json.loads(run(*SMALL, "--json")[1])["left_out"][0].startswith("summarization")


def test_live_columns(models: Models, on_terminal: Callable[..., str]) -> None:
    models.distribution = lambda history: after(0)(history)
    shown = on_terminal(*SMALL)
    assert "plain" in shown
    assert "adaptive" in shown
    assert "■ zoo:general" in shown
    assert "1/3 coding" in shown

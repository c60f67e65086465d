from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from draftwise.cli.demo import pick
from draftwise.data import spec_bench

from .conftest import Letters, Models, Run, after

SMALL = ("demo", "--target", "zoo:target", "--prompts", "3", "--max-new-tokens", "20")


@pytest.fixture(autouse=True)
def long_window(models: Models) -> None:
    models.max_length = 100_000


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others use nothing, whatever this machine does."""
    monkeypatch.setattr("draftwise.cli.demo.Meter", Others)
    monkeypatch.setattr(Others, "used", 0.0)


class Others:
    """A meter that reads a given number of cores."""

    used = 0.0

    def sample(self) -> dict[str, float]:
        return {"load": 0.0, "others": self.used, "over": 2.0}


def test_pick_takes_the_categories_in_turn() -> None:
    questions = spec_bench()
    assert len({q.category for q in pick(questions, 13)}) == 13
    assert set(Counter(q.category for q in pick(questions, 26)).values()) == {2}
    assert sorted(q.question_id for q in pick(questions, 999)) == sorted(q.question_id for q in questions)


def test_same_text_both_ways(models: Models, run: Run) -> None:
    status, out, err = run(*SMALL)
    assert (status, err) == (0, "")
    texts, _, table = out.partition("category")
    lines = table.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["coding", "translation", "summarization", "all"]
    assert "3/3" in lines[4]
    assert "target" in lines[4]
    assert "Same text in 3 of 3 prompts" in lines[5]
    assert lines[6].endswith("draftwise bench --peers transformers:plain")
    assert len(models.targets) == 1, "one model serves both sides"
    first, *prompts = texts.split("\n\n")
    assert first.startswith("The target is zoo:target, the drafters are zoo:general, ngram, suffix.")
    assert [prompt.split()[0] for prompt in prompts] == ["1/3", "2/3", "3/3"]


def test_where_there_are_no_colours_brackets_show_what_drafters_guessed(models: Models, run: Run) -> None:
    _, out, _ = run(*SMALL, "--drafters", "suffix", "--policy", "static-5", "--prompts", "1")
    row = json.loads(
        run(*SMALL, "--drafters", "suffix", "--policy", "static-5", "--prompts", "1", "--json")[1]
    )
    text = out.partition("\n\n")[2].splitlines()[1]
    guessed = sum(len(part.partition("]")[0]) for part in text.split("[")[1:])
    assert guessed == row["prompts"][0]["by_drafter"]["suffix"] > 0, "letters are the tokens of this model"
    assert len(text.replace("[", "").replace("]", "")) == 20


def test_a_busy_machine_is_mentioned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Others, "used", 1.9)
    status, _, err = run(*SMALL)
    assert status == 0
    assert [line.split(" of ")[0] for line in err.splitlines()] == ["Others are using 1.9", "Others used 1.9"]


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

    monkeypatch.setattr("draftwise.core.request_round.walk", believe)
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
    assert "left:" in shown, "how long the rest takes is not cut off"

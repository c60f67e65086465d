"""Runs of `draftwise bench` read together: what counts, and for which texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftwise.errors import UserError
from studies.speed.live import comparison, own_time, ratios, read

PREFILL = {"auto": 0.5, "fixed": 0.5, "none": 1.5}
ROUND = {"auto": 0.01, "fixed": 0.015, "none": 0.02}


def rows(
    method: str, prompt: int, rounds: int, category: str
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """A text whose rounds write one token each; the first is the prefill."""
    same = {"method": method, "category": category, "batch": 1, "prompt": prompt}
    phases = {"choose": 1e-6, "grade": 2e-6, "learn": 3e-6}
    found: list[dict[str, object]] = [
        {**same, "round": k, "drafted": k % 2, "seconds": {**phases, "verify": 0.0 if k else PREFILL[method]}}
        for k in range(rounds)
    ]
    seconds = PREFILL[method] + rounds * ROUND[method]
    return {**same, "new_tokens": rounds, "seconds": seconds}, found


def run(folder: Path, lengths: dict[str, list[int]]) -> Path:
    """A run in which each method wrote texts of these lengths, every second one of another category."""
    folder.mkdir()
    prompts, rounds = [], []
    for method, its in lengths.items():
        for prompt, length in enumerate(its):
            text, found = rows(method, prompt, length, ("qa", "rag")[prompt % 2])
            prompts += [text, {**text, "batch": 8, "new_tokens": 99}]
            rounds += [*found, {**found[0], "batch": 8}]
    for name, lines in (("prompts", prompts), ("rounds", rounds)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def test_drawn_texts_of_other_lengths_and_a_slow_prefill_by_chance_change_nothing(tmp_path: Path) -> None:
    texts = read([run(tmp_path / "a", {"auto": [10] * 6, "none": [40] * 6})])
    prefill = 6 * (0.5 + 1.5) / (6 * 50)
    value, low, high = ratios(texts, "auto", "none")
    assert value == pytest.approx((0.02 + prefill) / (0.01 + prefill))
    assert low == pytest.approx(value) and high == pytest.approx(value)  # all texts are the same


def test_runs_are_read_together_and_a_text_that_one_method_lacks_is_left_out(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "a", {"auto": [10, 10], "none": [10, 10]}),
        run(tmp_path / "b", {"auto": [10, 10], "none": [10]}),
    ]
    assert [len(mine) for mine in read(runs).values()] == [3, 3]


def test_each_category_has_a_row_and_the_fastest_other_method_comes_first(tmp_path: Path) -> None:
    lengths = [10, 20, 30, 10, 20, 30]
    texts = read([run(tmp_path / "a", {"auto": lengths, "none": lengths, "fixed": lengths})])
    lines = list(comparison(texts, "auto"))
    assert lines[0] == "| category (texts) | against `fixed` | against `none` |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| qa (3)", "| rag (3)", "| all (6)"]
    assert "too few" in lines[2] and "too few" not in lines[4]


def test_own_work_is_counted_for_each_round(tmp_path: Path) -> None:
    texts = read([run(tmp_path / "a", {"auto": [10, 20], "none": [10, 20]})])
    assert list(own_time(texts))[2] == "| `auto` | 30 | 0.50 | 1.00 | 1 | 2 | 3 |"


def test_a_folder_that_is_no_run_or_has_only_batches_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prompts\.jsonl"):
        read([tmp_path])
    batches = run(tmp_path / "a", {"auto": [10]})
    for name in ("prompts", "rounds"):
        lines = (batches / f"{name}.jsonl").read_text("utf-8").splitlines()
        kept = [line for line in lines if json.loads(line)["batch"] == 8]
        (batches / f"{name}.jsonl").write_text("\n".join(kept), "utf-8")
    with pytest.raises(UserError, match="one request at a time"):
        read([batches])

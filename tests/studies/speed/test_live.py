"""Runs of `draftwise bench` read together: what counts, and for which texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftwise.errors import UserError
from studies.speed.live import comparison, own_time, ratios, read

PREFILL = {"auto": 0.5, "fixed": 0.5, "none": 1.5}
ROUND = {"auto": 0.01, "fixed": 0.015, "none": 0.02}


def run(folder: Path, lengths: dict[str, list[int]], *, batches: tuple[int, ...] = (1, 8)) -> Path:
    """A run in which each method wrote texts of these lengths, every second one of another category.

    A round writes one token; the first is the prefill.
    """
    folder.mkdir()
    prompts, rounds = [], []
    for batch in batches:
        for method, its in lengths.items():
            for prompt, length in enumerate(its):
                category = ("qa", "rag")[prompt % 2]
                same = {"method": method, "category": category, "batch": batch, "prompt": prompt}
                seconds = PREFILL[method] + length * ROUND[method]
                prompts.append(same | {"new_tokens": length, "seconds": seconds})
                for k in range(length):
                    phases = {"choose": 1e-6, "grade": 2e-6, "learn": 3e-6}
                    phases["verify"] = 0.0 if k else PREFILL[method]
                    rounds.append(same | {"round": k, "drafted": k % 2, "seconds": phases})
    for name, lines in (("prompts", prompts), ("rounds", rounds)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def test_drawn_texts_of_other_lengths_and_a_slow_prefill_by_chance_change_nothing(tmp_path: Path) -> None:
    texts = read([run(tmp_path / "a", {"auto": [10] * 6, "none": [40] * 6})])
    prefill = 6 * (0.5 + 1.5) / (6 * 50)
    value, low, high = ratios(texts, "auto", "none")
    assert value == pytest.approx((0.02 + prefill) / (0.01 + prefill))
    assert low == pytest.approx(value) and high == pytest.approx(value)  # all texts are the same


def test_runs_are_read_together_by_category_without_texts_that_one_method_lacks(tmp_path: Path) -> None:
    lengths = [10, 20, 30, 10, 20, 30]
    whole = dict.fromkeys(("auto", "none", "fixed"), lengths)
    runs = [run(tmp_path / "a", whole), run(tmp_path / "b", whole | {"none": [10], "auto": [10, 20]})]
    texts = read(runs)
    assert [len(mine) for mine in texts.values()] == [7, 7, 7]
    header, *lines = "\n".join(comparison(texts, "auto")).splitlines()
    assert header == "| category (texts) | against `fixed` | against `none` |", "the fastest other one first"
    assert [line.split(" | ")[0] for line in lines[1:]] == ["| qa (4)", "| rag (3)", "| all (7)"]
    assert "too few" in lines[1] and "too few" not in lines[3]
    own = "\n".join(own_time(read(runs[:1]))).splitlines()
    assert own[2] == "| `auto` | 120 | 0.50 | 1.00 | 1 | 2 | 3 |"


def test_a_folder_that_is_no_run_or_has_only_batches_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prompts\.jsonl"):
        read([tmp_path])
    with pytest.raises(UserError, match="one request at a time"):
        read([run(tmp_path / "a", {"auto": [10]}, batches=(8,))])

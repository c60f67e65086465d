from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from draftwise import UserError
from draftwise.data import Prompt, spec_bench
from draftwise.measure.workloads import FRENCH, MOVING, STRETCH, choose, load, validation


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "kind, row, prompt",
    [
        ("humaneval", {"task_id": "HumanEval/0", "prompt": "def f():\n"}, "def f():\n"),
        ("mbpp", {"id": "MBPP/11", "prompt": "def g():\n"}, "def g():\n"),
        (
            "mbpp",
            {"task_id": 11, "text": "Add two numbers.", "test_list": ["assert f(1, 2) == 3"]},
            "You are an expert Python programmer, and here is your task: Add two numbers. "
            "Your code should pass these tests:\n\nassert f(1, 2) == 3\n",
        ),
        (
            "mbpp",
            {"text": "Add.", "test_list": None},
            "You are an expert Python programmer, and here is your "
            "task: Add. Your code should pass these tests:\n\n\n",
        ),
        ("gsm8k", {"question": "What is 2 + 3?", "answer": "5"}, "Question: What is 2 + 3?\nAnswer:"),
        ("gsm8k", {"id": "t-0", "prompt": "Question: 2?\nAnswer:"}, "Question: 2?\nAnswer:"),
    ],
)
def test_known_data_sets_in_their_own_form(tmp_path: Path, kind: str, row: Any, prompt: str) -> None:
    file = write(tmp_path / "test.jsonl", row)
    (found,) = load(f"{kind}:{tmp_path}")
    assert (found.category, found.turns) == (kind, (prompt,))
    assert load(f"{kind}:{file}") == [found]


def test_a_packed_data_set_and_one_in_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(b'{"task_id": "x", "prompt": "a"}\n'))
    assert load(f"humaneval:{tmp_path}") == [Prompt("x", "humaneval", ("a",))]
    write(tmp_path / "mbpp/test.jsonl", {"prompt": "b"})
    assert load(f"mbpp:{tmp_path}")[0].text == "b"


@pytest.mark.parametrize(
    "name, said",
    [
        ("spec-bank", "no workload or file 'spec-bank': choose from spec-bench, mixed"),
        ("gsm8k", "write gsm8k:PATH"),
        ("gsm8k:{}/nowhere", "no gsm8k in"),
        ("{}/none.jsonl", "no workload or file"),
        ("{}/broken.jsonl", "broken.jsonl, line 2: not JSON"),
        ("humaneval:{}/broken.jsonl", "broken.jsonl, line 2: not JSON"),
        ("humaneval:{}/number.jsonl", "number.jsonl, line 1: not an object"),
        ("humaneval:{}/other.jsonl", r"other.jsonl, line 1: no prompt of humaneval \(its fields: text\)"),
        ("mbpp:{}/empty.jsonl", "no prompt in"),
        ("mbpp:{}/bytes.jsonl", "not UTF-8"),
        ("humaneval:{}/torn.jsonl.gz", "cannot read .*: damaged or no gzip file"),
        ("humaneval:{}/other.jsonl.gz", "cannot read .*: damaged or no gzip file"),
        ("humaneval:{}/flipped.jsonl.gz", "cannot read .*: damaged or no gzip file"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "number.jsonl").write_text("7\n")
    (tmp_path / "other.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"x" * 100)[:20])
    (tmp_path / "other.jsonl.gz").write_text('{"prompt": "a"}\n')
    packed = gzip.compress(b"x" * 100)
    (tmp_path / "flipped.jsonl.gz").write_bytes(packed[:10] + b"\xff" + packed[11:])
    with pytest.raises(UserError, match=said):
        load(name.format(tmp_path))


@pytest.mark.parametrize("name", MOVING)
def test_moving_workloads_follow_their_seed(name: str) -> None:
    assert load(name, seed=3) == load(name, seed=3)
    assert load(name, seed=3) != load(name, seed=4)
    assert len({p.question_id for p in load(name)}) == len(load(name))


@pytest.mark.parametrize("name", ["mixed", "phased"])
def test_every_question_is_there_once(name: str) -> None:
    assert sorted(p.question_id for p in load(name)) == sorted(p.question_id for p in spec_bench())


def test_mixed_takes_the_categories_in_turn() -> None:
    first = load("mixed")[:26]
    assert {len({p.category for p in first[i : i + 13]}) for i in (0, 13)} == {13}


def test_phased_stays_with_a_category_and_leaves_it() -> None:
    stretches = [len(list(group)) for _, group in groupby(load("phased"), lambda p: p.category)]
    assert set(stretches[:13]) == {STRETCH}
    assert len(stretches) > 20


def test_drift_has_two_tasks_in_one_request() -> None:
    prompts = load("drift")
    assert Counter(p.category for p in prompts) == {"drift languages": 80, "drift tasks": 80}
    categories = {p.text: p.category for p in spec_bench()}
    for prompt in prompts:
        if prompt.category == "drift languages":
            german, _, french = prompt.text.partition("\nTranslate French to English: ")
            assert german.startswith("Translate German to English: ")
            assert french in FRENCH
        else:
            pairs = [
                (a, b) for a in categories if prompt.text.startswith(a) for b in [prompt.text[len(a) + 2 :]]
            ]
            assert any(categories.get(b, categories[a]) != categories[a] for a, b in pairs)


def test_hostile_text_keeps_no_word() -> None:
    words = Counter(w for p in load("hostile") for w in p.text.lower().split() if len(w) > 4 and w.isalpha())
    real = {w for p in spec_bench() for w in p.text.lower().split() if len(w) > 4}
    assert len(words.keys() & real) < 0.001 * len(words)
    assert words.most_common(1)[0][1] < 5


def test_the_splits_are_a_partition_and_do_not_move() -> None:
    prompts = spec_bench()
    test, kept = choose(prompts, split="test"), choose(prompts, split="validation")
    assert sorted(str(p.question_id) for p in test + kept) == sorted(str(p.question_id) for p in prompts)
    assert (len(test), len(kept)) == (359, 121)
    assert not any(validation(Prompt(0, "renamed", (p.text,))) for p in test), "only the text decides"


def test_choose_bounds_categories_and_total() -> None:
    prompts = load("mixed")
    assert set(Counter(p.category for p in choose(prompts, per_category=2)).values()) == {2}
    assert choose(prompts, limit=7) == prompts[:7]
    with pytest.raises(UserError, match="--split train: choose from all, test, validation"):
        choose(prompts, split="train")
    with pytest.raises(UserError, match="use --split all"):
        choose([p for p in prompts if validation(p)], split="test")

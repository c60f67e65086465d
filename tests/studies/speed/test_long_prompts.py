"""Prompts of some lengths: as long as they say, and each text of the data once in a prompt."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from draftwise.models.load import load_tokenizer
from studies.speed import long_prompts


def test_prompts_are_as_long_as_their_category_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("qa", "code_python"):
        (tmp_path / folder).mkdir()
        rows = [{"prompt": f"Context: {'word ' * 50}{k}\nQuestion: {j}"} for k in range(9) for j in "ab"]
        (tmp_path / folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "long.jsonl"
    given = f"study --data {tmp_path} --out {out} --target zoo:target --tokens 40,90 --each 3".split()
    monkeypatch.setattr(sys, "argv", given)
    long_prompts.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    kinds = {f"{kind} {tokens}": 3 for kind in ("passages", "code") for tokens in (40, 90)}
    assert Counter(row["category"] for row in rows) == kinds
    tokenizer = load_tokenizer("zoo:target")
    for row in rows:
        kind, tokens = row["category"].split()
        before, after = (
            len(tokenizer(part)["input_ids"]) for part in long_prompts.ASKED[kind][1].split("{}")
        )
        length = len(tokenizer(row["prompt"])["input_ids"]) - before - after
        assert abs(length - int(tokens)) < 5
        assert "Question" not in row["prompt"]

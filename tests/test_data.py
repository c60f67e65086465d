from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftwise.data import Prompt, load_prompts, spec_bench
from draftwise.errors import UserError


def test_spec_bench_is_complete() -> None:
    questions = spec_bench()
    assert len(questions) == 480
    assert len({q.question_id for q in questions}) == 480
    assert sum(q.category == "translation" for q in questions) == 80
    assert questions[0].question_id == 81
    assert len(questions[0].turns) == 2
    assert questions[0].text == questions[0].turns[0]


def test_both_kinds_of_line_and_unusual_line_breaks(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "a\u2028b"}, {"question_id": "x", "category": "c", "turns": ["d", "e"]}]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    for encoding in ("utf-8", "utf-8-sig"):  # some editors begin a file with a mark
        file.write_text(text, encoding=encoding)
        assert load_prompts(file) == [Prompt(1, "prompt", ("a\u2028b",)), Prompt("x", "c", ("d", "e"), "c")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ("{}", "no text"),
        ('{"prompt": 3}', "no text"),
        ('{"prompt": " "}', "no text"),
        ('{"turns": []}', "no text"),
        ('{"turns": "abc"}', "no text"),
        ('{"turns": ["a", null]}', "no text"),
        ('{"prompt": "a", "category": 3}', "not a name"),
        ('{"prompt": "a", "question_id": {}}', "not a name"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(UserError) as caught:
        load_prompts(file)
    message = str(caught.value)
    assert str(file) in message
    assert "line 2" in message
    assert said in message
    assert '{"prompt": "..."}' in message
    assert "\n" not in message


def test_files_without_prompts(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.jsonl", tmp_path / "binary.jsonl"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xff")
    for path, said in ((empty, "no prompt"), (binary, "UTF-8"), (tmp_path / "nowhere", "No such file")):
        with pytest.raises(UserError, match=said):
            load_prompts(path)

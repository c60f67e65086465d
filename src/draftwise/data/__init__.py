"""Prompts: the questions of Spec-Bench, and any JSONL file with the same fields. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.errors import UserError
from draftwise.inputs import parse_json, whole

SPEC_BENCH = Path(__file__).with_name("spec_bench.jsonl")

_REMEDY = 'write {"prompt": "..."} or {"question_id": ..., "category": "...", "turns": ["..."]} on each line'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of a workload; a conversation has several turns.

    `domain` and `source` are those of training data; without a `domain` it is the category, if that is given.
    """

    question_id: int | str
    category: str
    turns: tuple[str, ...]
    domain: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        return self.turns[0]


def spec_bench() -> list[Prompt]:
    """The 480 questions of Spec-Bench (Xia et al. 2024), in the file's order.

    The 13 categories include the 8 of MT-Bench with 10 questions each, whose `question_id` is 81 to 160.
    """
    return load_prompts(SPEC_BENCH)


def load_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a JSONL file, one object a line; blank lines are skipped.

    Raises:
        UserError: the file cannot be read, holds no prompt, or a line is broken; names file and line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON strings may hold other line breaks
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read the prompts in {path}: {reason}; name a JSONL file") from error
    prompts = [_prompt(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UserError(f"no prompt in {path}; {_REMEDY}")
    return prompts


def _prompt(line: str, number: int, path: Path) -> Prompt:
    try:
        row: Any = parse_json(line)
    except ValueError as error:
        reason = getattr(error, "msg", str(error))
        raise UserError(f"{path}, line {number}: not JSON ({reason}); {_REMEDY}") from error
    if not isinstance(row, dict):
        raise UserError(f"{path}, line {number}: not an object; {_REMEDY}")
    turns = row.get("turns", [row["prompt"]] if "prompt" in row else None)
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise UserError(f"{path}, line {number}: no text in `turns` or `prompt`; {_REMEDY}")
    name = row.get("question_id", number)
    category = row.get("category", "prompt")
    if not isinstance(name, (int, str)) or not isinstance(category, str):
        raise UserError(f"{path}, line {number}: `question_id` or `category` is not a name; {_REMEDY}")
    texts = tuple(whole(turn, f"{path}, line {number}:") for turn in turns)
    domain = str(row.get("domain", row.get("category", "")))
    return Prompt(name, category, texts, domain, str(row.get("source", "")))

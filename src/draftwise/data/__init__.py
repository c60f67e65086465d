"""Prompts: the questions of Spec-Bench, and any JSONL file with the same fields. Standard library only."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import error as ZlibError

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
    prompts = [_prompt(row, number, Path(path)) for number, row in read_rows(Path(path), f"; {_REMEDY}")]
    if not prompts:
        raise UserError(f"no prompt in {path}; {_REMEDY}")
    return prompts


def read_rows(path: Path, remedy: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSONL file, which may be packed by gzip, with their line numbers.

    Raises:
        UserError: the file cannot be read, or a line is broken; names file and line, and ends with `remedy`.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = raw.decode("utf-8-sig").split("\n")  # JSON strings may hold other line breaks
    except (gzip.BadGzipFile, ZlibError, EOFError) as error:
        raise UserError(f"cannot read {path}: damaged or no gzip file; get it again") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read the prompts in {path}: {reason}; name a JSONL file") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            reason = getattr(error, "msg", str(error))
            raise UserError(f"{path}, line {number}: not JSON ({reason}){remedy}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not an object{remedy}")
        yield number, row


def _prompt(row: dict[str, Any], number: int, path: Path) -> Prompt:
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

"""What is decoded: the bundled questions, known data sets from a folder, any JSONL file, and mixtures."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import error as ZlibError

from ..data import Prompt, load_prompts, spec_bench
from ..errors import UserError
from ..inputs import parse_json, whole
from .moving import drift, hostile, mixed, phased

SPLITS = ("all", "test", "validation")
MOVING: Mapping[str, Callable[[Sequence[Prompt], int], list[Prompt]]] = {
    "mixed": mixed,
    "phased": phased,
    "drift": drift,
    "hostile": hostile,
}


def _humaneval(row: Mapping[str, Any]) -> Any:
    return row.get("prompt")


def _mbpp(row: Mapping[str, Any]) -> Any:
    """The signature form as it is; the original one with its tests, as its authors prompt with it."""
    if "prompt" in row or "text" not in row:
        return row.get("prompt")
    tests = "\n".join(row.get("test_list", ()))
    return (
        f"You are an expert Python programmer, and here is your task: {row['text']} "
        f"Your code should pass these tests:\n\n{tests}\n"
    )


def _gsm8k(row: Mapping[str, Any]) -> Any:
    return f"Question: {row['question']}\nAnswer:" if "question" in row else row.get("prompt")


SETS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "gsm8k": _gsm8k,
}
OFFICIAL = {"humaneval": ("HumanEval.jsonl", "HumanEval.jsonl.gz")}


def load(name: str, *, seed: int = 0) -> list[Prompt]:
    """The prompts of a workload, in its order; `seed` decides where the order or the text is drawn.

    `spec-bench`; `mixed`, `phased`, `drift` or `hostile`, made of its questions; `humaneval:PATH`,
    `mbpp:PATH` or `gsm8k:PATH`, a folder or a file; or the path of a JSONL file of prompts.

    Raises:
        UserError: no such workload or file, or a broken line, named with its file.
    """
    name = name.strip()
    if name == "spec-bench":
        return spec_bench()
    if name in MOVING:
        return MOVING[name](spec_bench(), seed)
    kind, colon, path = name.partition(":")
    if kind in SETS:
        if not (colon and path):
            raise UserError(f"workload {name!r} needs its folder: write {kind}:PATH")
        return _data_set(kind, Path(path))
    if not Path(name).is_file():
        known = ", ".join(["spec-bench", *MOVING, *(f"{s}:PATH" for s in SETS)])
        raise UserError(f"no workload or file {name!r}: choose from {known}, or name a JSONL file")
    return load_prompts(name)


def choose(
    prompts: Sequence[Prompt], *, split: str = "all", per_category: int = 0, limit: int = 0
) -> list[Prompt]:
    """The prompts of one split, the first `per_category` of each category, `limit` in all (0 = no bound).

    Raises:
        UserError: an unknown split, a bound below 0, or nothing is left.
    """
    if split not in SPLITS:
        raise UserError(f"--split {split}: choose from {', '.join(SPLITS)}")
    for name, bound in (("--limit", limit), ("--per-category", per_category)):
        if bound < 0:
            raise UserError(f"{name} {bound}: give a whole number, or 0 for no limit")
    seen: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        if split != "all" and validation(prompt) != (split == "validation"):
            continue
        seen[prompt.category] += 1
        if not per_category or seen[prompt.category] <= per_category:
            chosen.append(prompt)
    if not chosen:
        raise UserError(f"none of the {len(prompts)} prompts is in the split {split}: use --split all")
    return chosen[:limit] if limit else chosen


def validation(prompt: Prompt) -> bool:
    """Whether a prompt is kept for tuning: a quarter of all, by the SHA-256 of its text."""
    return sha256(prompt.text.encode()).digest()[0] % 4 == 0


def _data_set(kind: str, path: Path) -> list[Prompt]:
    file = path if path.is_file() else next((f for f in _candidates(kind, path) if f.is_file()), None)
    if file is None:
        looked = ", ".join(str(f.relative_to(path)) for f in _candidates(kind, path))
        raise UserError(f"no {kind} in {path}: name a JSONL file, or a folder with one of {looked}")
    prompts = []
    for number, row in _rows(file):
        text = SETS[kind](row)
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{file}, line {number}: no prompt of {kind} (its fields: {', '.join(row)})")
        name = row.get("task_id", row.get("id", number))
        prompts.append(
            Prompt(
                name if isinstance(name, (int, str)) else number,
                kind,
                (whole(text, f"{file}, line {number}:"),),
            )
        )
    if not prompts:
        raise UserError(f"no prompt in {file}: the file is empty")
    return prompts


def _candidates(kind: str, folder: Path) -> list[Path]:
    names = (*OFFICIAL.get(kind, ()), f"{kind}.jsonl", f"{kind}/test.jsonl", "test.jsonl")
    return [folder / name for name in names]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every object of a JSON Lines file with its line's number."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = raw.decode("utf-8").split("\n")
    except (gzip.BadGzipFile, ZlibError, EOFError) as error:
        raise UserError(f"cannot read {path}: damaged or no gzip file; get it again") from error
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read {path}: {said}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            said = getattr(error, "msg", str(error))
            raise UserError(f"{path}, line {number}: not JSON ({said})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not an object")
        yield number, row

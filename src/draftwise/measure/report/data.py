"""Reads a folder of results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, get_type_hints

from ...errors import UserError
from ..notes import words
from .records import FEWEST, Finished, Results, Row, Sample
from .rounds import read_rounds


def read(folder: Path, beside: Sequence[Path] = ()) -> Results:
    """The results in a folder, and the rows of the runs in the folders `beside`.

    Raises:
        UserError: there is no `results.json` and no `simulation.json`, or a file cannot be read.
    """
    with readable(folder):
        return _read(folder, beside)


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turn any failure to interpret the files of a folder into one line.

    Raises:
        UserError: a file has an unexpected structure, or text in place of a number.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(
            f"the results in {folder} are damaged ({said}): run the command that wrote them again"
        ) from error


def _read(folder: Path, beside: Sequence[Path]) -> Results:
    results, simulation = _json(folder / "results.json"), _json(folder / "simulation.json")
    if not results and not simulation:
        raise UserError(
            f"{folder} has no results.json: give the folder that bench, replay or simulate wrote with --out"
        )
    rows, oracle = _rows(results), _json(folder / "oracle.json")
    batch = min((row.batch for row in rows), default=1)
    return Results(
        run=dict(results.get("run") or simulation.get("run", {})),
        machine=dict(results.get("machine") or simulation.get("machine", {})),
        settings=dict(results.get("settings") or simulation.get("settings", {})),
        rows=rows,
        absent=tuple((a.get("method", "?"), a.get("reason", "")) for a in results.get("absent", ())),
        peers=tuple((str(p["method"]), words(p)) for p in results.get("peers", ())),
        doubts=tuple(f"`{p['method']}`: {d}" for p in results.get("peers", ()) for d in p["doubts"]),
        clean=results.get("clean"),
        busy=tuple(map(str, results.get("busy", ()))),
        left_out=tuple(map(str, results.get("left_out", ()))),
        load=tuple(sample for sample in results.get("load", ()) if isinstance(sample, Mapping)),
        finished=tuple(_known(Finished, line) for line in lines(folder / "prompts.jsonl")),
        rounds=read_rounds(r for r in lines(folder / "rounds.jsonl") if r.get("batch", batch) == batch),
        samples=tuple(_known(Sample, line) for line in lines(folder / "pieces.jsonl")),
        oracle=_oracle(oracle),
        optimum=tuple(oracle.get("results", ())),
        simulation=simulation,
        beside=_beside([folder, *beside]) if beside else {},
    )


def _rows(results: Mapping[str, Any]) -> tuple[Row, ...]:
    rows = (_known(Row, row) for row in results.get("results", ()))
    return tuple(replace(r, interval=(nan, nan)) if 0 < r.prompts < FEWEST else r for r in rows)


def _beside(folders: Sequence[Path]) -> dict[str, tuple[Row, ...]]:
    """The rows of each run, by the settings that differ, or by folder where none does."""
    runs = [_json(folder / "results.json") for folder in folders]
    settings = [run.get("settings", {}) for run in runs]
    differ = [key for key in settings[0] if any(other.get(key) != settings[0][key] for other in settings)]
    found: dict[str, tuple[Row, ...]] = {}
    for folder, run, mine in zip(folders, runs, settings, strict=True):
        if not run:
            raise UserError(f"{folder} has no results.json: give the folder that bench or replay wrote")
        label = ", ".join(f"{key} {mine.get(key)}" for key in differ[:2]) or str(folder)
        found[label if label not in found else str(folder)] = _rows(run)
    return found


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON Lines file; a last line that was cut short by an interruption is ignored.

    Raises:
        UserError: any other line is damaged.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                found = json.loads(line)
            except ValueError as error:
                if line.endswith("\n"):
                    raise UserError(f"{path}, line {number}: not JSON ({error}); remove it") from None
                return
            if not isinstance(found, dict):
                raise UserError(f"{path}, line {number}: not a JSON object; remove it")
            yield found


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); run the command that wrote it again") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a JSON object; run the command that wrote it again")
    return found


def _known(kind: Any, record: Mapping[str, Any]) -> Any:
    """An instance of `kind` from a record; unknown fields and nulls are ignored."""
    given = {f.name: record[f.name] for f in fields(kind) if record.get(f.name) is not None}
    for name, hint in _hints(kind).items():
        if name in given:
            _fitting(name, given[name], hint)
    if "prompt" in given:
        given["prompt"] = str(given["prompt"])
    if "pieces" in given:
        given["pieces"] = tuple((str(text), str(source)) for text, source in given["pieces"])
    if "interval" in given:
        low, high = (x if x is None else _fitting("interval", x, float) for x in given["interval"])
        given["interval"] = (nan if low is None else low, nan if high is None else high)
    return kind(**given)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fitting(name: str, value: Any, hint: Any) -> Any:
    """The value, if its type is the one that `hint` asks for."""
    kinds: Any = {int: (int, float), float: (int, float), str: (str, int)}.get(hint)
    if kinds is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise ValueError(f"{name} is {value!r}")
    if hint in (Mapping[str, int], Mapping[str, float]):
        for inner, number in dict(value).items():
            _fitting(f"{name} {inner}", number, float)
    return value


def _oracle(found: Mapping[str, Any]) -> dict[str, tuple[tuple[int, str, int], ...]]:
    paths = found.get("lengths", {})
    return {prompt: tuple((int(t), str(d), int(n)) for t, d, n in path) for prompt, path in paths.items()}

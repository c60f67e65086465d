"""The folder of a run: finished work is written at once, and an interrupted run resumes from it.

`prompts.jsonl` determines what is finished. Everything else that belongs to a unit of work (one method on one
batch of prompts) is written before its lines there, and dropped on resuming if these lines are missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from filelock import FileLock, Timeout

from ...errors import UserError
from ...inputs import parse_json
from ...writing import replacing, write_json
from ..results import Row, read_lines
from ..writing import check_reachable

NOTES = "state/notes.json"
FILES = ("prompts.jsonl", "rounds.jsonl", "pieces.jsonl")
PLACE = {"method", "batch", "prompt"}
FINISHED = PLACE | {"key", "engine", "category", "new_tokens", "seconds", "rounds", "accepted", "drafted"}
FINISHED |= {"seconds_by_phase", "pulls", "text_sha", "load"}


@dataclass(frozen=True, slots=True)
class Unit:
    """One method on one batch of prompts, given by their indices in the workload."""

    method: str
    batch: int
    prompts: tuple[int, ...]

    @property
    def keys(self) -> list[str]:
        return [f"{self.method} @{self.batch} #{prompt}" for prompt in self.prompts]


def usable(folder: Path, settings: Mapping[str, Any]) -> None:
    """Check that a folder is new, empty, or a run's with these settings, and can be written to."""
    check_reachable(folder)
    own = (".lock", "state")  # what a run may have left that was killed before it wrote `run.json`
    is_begun = (folder / "run.json").exists() or not folder.exists()
    others = [] if is_begun else [path.name for path in folder.iterdir() if path.name not in own]
    if others:
        raise UserError(f"{folder} holds {others[0]}, and no run: name a new or empty folder")
    before, _ = _read_run(folder)
    for name in settings if before else ():
        if before.get(name) != settings[name]:
            raise UserError(
                f"{folder} holds a run with {name} {_short(before.get(name))}, now {_short(settings[name])}: "
                "continue with the same settings, or name another folder"
            )
    for _ in _read(folder / FILES[0]):
        pass


def begun_with(folder: Path) -> int:
    """The number of threads of a run that is resumed; 0 if none has begun."""
    threads = _read_run(folder)[0].get("threads")
    return threads if isinstance(threads, int) else 0


class Journal:
    """Appends to one run's folder, and reads what is already there.

    Raises:
        UserError: the folder cannot be used, belongs to a run with other settings, or is being written to.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, load: float | None = None) -> None:
        self.folder, self.settings = folder, dict(settings)
        usable(folder, settings)
        try:
            (folder / "state").mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / ".lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"another run writes to {folder}: wait for it, or name another folder") from None
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"cannot write to {folder}: {reason}; name another folder") from error
        try:
            self.starts = [*_read_run(folder)[1], load]
            self.done: dict[str, Row] = {row["key"]: row for row in _read(folder / FILES[0])}
            write_json(folder / "run.json", {"settings": self.settings, "starts": self.starts})
        except BaseException:
            self._lock.release()
            raise

    def resume(self, units: Iterable[Unit]) -> None:
        """Keep the data of units that are completely finished, and drop the rest."""
        whole = {key for unit in units for key in unit.keys if all(k in self.done for k in unit.keys)}
        self.done = {key: row for key, row in self.done.items() if key in whole}
        places = {_place(row) for row in self.done.values()}
        self._keep("prompts.jsonl", lambda row: row["key"] in whole)
        for name in FILES[1:]:
            self._keep(name, lambda row: _place(row) in places)

    def finished(self, unit: Unit) -> bool:
        return all(key in self.done for key in unit.keys)

    def finish(
        self, unit: Unit, rows: Sequence[Row], rounds: Sequence[Row], pieces: Sequence[Row], memory: Any
    ) -> None:
        """Write all data of a unit; its lines in `prompts.jsonl` come last and mark it as finished."""
        self._append("rounds.jsonl", rounds)
        self._append("pieces.jsonl", pieces)
        state = self._state(unit.method)
        write_json(state.with_suffix(".next"), {"after": unit.keys[-1], "memory": memory})
        self._append("prompts.jsonl", rows)
        os.replace(state.with_suffix(".next"), state)
        self.done |= {row["key"]: row for row in rows}

    def memory(self, method: str) -> Any:
        """The memory of a method after its last finished unit; None if it has finished none."""
        keys = [row["key"] for row in self.done.values() if row["method"] == method]
        if not keys:
            return None
        for path in (self._state(method), self._state(method).with_suffix(".next")):
            try:
                saved = json.loads(path.read_text())
            except (OSError, json.JSONDecodeError):
                continue
            if saved["after"] == keys[-1]:
                return saved["memory"]
        raise UserError(f"{self._state(method)} does not fit the last line of {method}: name another folder")

    def texts(self, batch: int) -> dict[str, dict[int, list[int]]]:
        """The tokens that each method has written at a batch size, by prompt, in the order of the run."""
        texts: dict[str, dict[int, list[int]]] = {}
        for row in _read(self.folder / FILES[1]):
            if row["batch"] == batch:
                own = texts.setdefault(row["method"], {})
                own.setdefault(row["prompt"], []).extend(row.get("tokens", ()))
        return texts

    def note(self, method: str, facts: Mapping[str, Any]) -> None:
        """Keep facts about a method beside those that are known."""
        notes = self.notes()
        write_json(self.folder / NOTES, notes | {method: notes.get(method, {}) | dict(facts)})

    def notes(self) -> dict[str, dict[str, Any]]:
        """The facts about each method, also of an interrupted run that this one continues."""
        try:
            notes: dict[str, dict[str, Any]] = json.loads((self.folder / NOTES).read_text())
        except (OSError, ValueError):
            return {}
        return notes

    def rows(self) -> list[Row]:
        return list(self.done.values())

    def rewrite(self, rows: Iterable[Row]) -> None:
        _write_lines(self.folder / "prompts.jsonl", rows)

    def close(self) -> None:
        self._lock.release()

    def _state(self, method: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in method)
        return self.folder / "state" / f"{safe}-{crc32(method.encode()):x}.json"

    def _keep(self, name: str, belongs: Callable[[Row], bool]) -> None:
        _write_lines(self.folder / name, (row for row in _read(self.folder / name) if belongs(row)))

    def _append(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            with open(self.folder / name, "a", encoding="utf-8") as file:
                file.write("".join(line(row) for row in rows))


def _read_run(folder: Path) -> tuple[dict[str, Any], list[float | None]]:
    """The settings of a run, and the loads with which it began and was continued; nothing if it is new."""
    path = folder / "run.json"
    if not path.exists():
        return {}, []
    try:
        saved = parse_json(path.read_text(encoding="utf-8"))
        return dict(saved["settings"]), list(saved["starts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}): name another folder") from error


def line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _write_lines(path: Path, rows: Iterable[Row]) -> None:
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        file.writelines(line(row) for row in rows)


def _read(path: Path) -> Iterator[Row]:
    """Yield the lines of a file, which must be a run's."""
    for number, row in read_lines(path, "fix it or name another folder"):
        if not _is_line_of_run(row, path.name):
            raise UserError(f"{path}, line {number}: no line of a run; fix it or name another folder")
        yield row


def _is_line_of_run(row: Any, name: str) -> bool:
    """Return whether a line has the fields that a run writes to this file, and its place in the run."""
    if not isinstance(row, dict) or not row.keys() >= (FINISHED if name == FILES[0] else PLACE):
        return False
    method, batch, prompt = _place(row)
    fits = isinstance(method, str) and type(batch) is int and type(prompt) is int
    return fits and isinstance(row.get("key", ""), str)


def _place(row: Row) -> tuple[str, int, int]:
    return row["method"], row["batch"], row["prompt"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."

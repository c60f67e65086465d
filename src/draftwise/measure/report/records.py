"""Reads a folder of results: rows, finished prompts, sample texts, and rounds by the column."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ..results import describe_peer, read_lines

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Pairs = Mapping[str, tuple[Floats, Floats]]

OURS = ("draftwise", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The results of one method in one category ("all" is the total) or on one prompt. NaN means unknown.

    One run may have rows at several batch sizes.
    """

    method: str
    engine: str = "draftwise"
    category: str = "all"
    prompt: str = ""
    batch: int = 1
    prompts: int = 0
    new_tokens: int = 0
    seconds: float = nan
    tokens_per_s: float = nan
    ttft_s: float = nan
    tpot_s: float = nan
    speedup: float = nan
    interval: tuple[float, float] = (nan, nan)
    mean_of_ratios: float = nan
    mean_accepted: float = nan
    tokens_per_round: float = nan
    acceptance_rate: float = nan
    rounds: int = 0
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    identical: int = -1
    pulls: Mapping[str, int] = field(default_factory=dict)
    fraction_of_optimum: float = nan

    @property
    def name(self) -> str:
        """The method; the name of another engine stands before it."""
        is_own = self.engine in OURS or self.method.startswith(self.engine)
        return self.method if is_own else f"{self.engine} {self.method}"

    @property
    def kind(self) -> str:
        """ "plain", "fixed" (one arm for all rounds), "adaptive" or "peer"."""
        if self.engine not in OURS:
            return "peer"
        if self.method == "none":
            return "plain"
        return "adaptive" if len(self.pulls) > 1 else "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An answer as pieces of (text, drafter that proposed it), and the text of its prompt where it was kept.

    Pieces that the target wrote itself have the source "target".
    """

    method: str
    prompt: str
    category: str = ""
    prompt_text: str = ""
    pieces: tuple[tuple[str, str], ...] = ()


_NAMES = ("category", "prompt", "arm", "drafter")
_COUNTS = ("round", "length", "drafted", "accepted")
_WIDTH = len(_NAMES) + len(_COUNTS) + 2  # columns, with tokens and overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The rounds of one method in the order in which they were played, one array a column.

    `category`, `prompt`, `arm` and `drafter` are indices into `names` of the same key; a drafter whose round
    had length 0 is "none". `round` counts within a text, `tokens` are those committed, `overlap` is the mean
    1 - TV over the draft (NaN where it was not read). `entropy` has a category's entropies in nats, first at
    accepted positions, then at refused ones. `values` are (round, value) of each arm as the policy saw it.
    """

    names: Mapping[str, tuple[str, ...]]
    category: Ints
    prompt: Ints
    arm: Ints
    drafter: Ints
    round: Ints
    length: Ints
    drafted: Ints
    accepted: Ints
    tokens: Ints
    overlap: Floats
    entropy: Pairs
    values: Pairs

    def __len__(self) -> int:
        return len(self.arm)

    def where(self, key: str, name: str) -> Bools:
        """Return the rounds whose `category`, `prompt`, `arm` or `drafter` is called so."""
        names = self.names[key]
        mask: Bools = getattr(self, key) == (names.index(name) if name in names else -1)
        return mask


def read_rounds(records: Iterable[Mapping[str, Any]]) -> dict[str, Rounds]:
    """Return the rounds of each method, of the lines of `rounds.jsonl`."""
    columns: dict[str, _Columns] = {}
    for record in records:
        columns.setdefault(record["method"], _Columns()).add(record)
    return {method: column.rounds() for method, column in columns.items()}


@dataclass(slots=True)
class _Columns:
    """Grows by a round at a time: a run has hundreds of thousands, too many to keep as records."""

    table: array[float] = field(default_factory=lambda: array("d"))
    codes: dict[str, dict[str, int]] = field(default_factory=lambda: {key: {} for key in _NAMES})
    entropy: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    values: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        accepted, overlap = record.get("accepted", 0), record.get("overlap")
        category = record.get("category", "")
        drafter = record.get("drafter", "") if record.get("length", 0) else "none"
        names = (category, str(record.get("prompt", "")), record.get("arm", ""), drafter)
        pairs = zip(self.codes.values(), names, strict=True)
        codes = [codes.setdefault(name, len(codes)) for codes, name in pairs]
        counts = [record.get(key, 0) for key in _COUNTS]
        tokens = len(record.get("tokens") or ())
        self.table.extend((*codes, *counts, tokens, nan if overlap is None else overlap))
        if entropy := record.get("entropy"):
            on_accepted, on_rejected = self.entropy.setdefault(category, ([], []))
            on_accepted.extend(entropy[:accepted])
            on_rejected.extend(entropy[accepted : accepted + 1])
        for arm, value in (record.get("values") or {}).items():
            places, estimates = self.values.setdefault(arm, ([], []))
            places.append(len(self.table) // _WIDTH)
            estimates.append(nan if value is None else value)

    def rounds(self) -> Rounds:
        table = np.array(self.table).reshape(-1, _WIDTH)
        columns: dict[str, Any] = {
            key: table[:, i].astype(np.int32) for i, key in enumerate((*_NAMES, *_COUNTS, "tokens"))
        }
        return Rounds(
            names={key: tuple(codes) for key, codes in self.codes.items()},
            overlap=table[:, -1],
            entropy=_arrays(self.entropy),
            values=_arrays(self.values),
            **columns,
        )


def _arrays(pairs: Mapping[str, tuple[list[float], list[float]]]) -> Pairs:
    return {key: (np.array(a, np.float64), np.array(b, np.float64)) for key, (a, b) in pairs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that is in the folder; what is missing is empty, and `clean` is None where it is unknown.

    `run` has the date of the run and its command. `oracle` is the least-time path of each prompt:
    (position, drafter, length) from round to round. `optimum` has the least time and that of fixed arms, one
    record per category. `peers` has the settings of each peer in words, `doubts` what speaks against one.
    `beside` has the rows of other runs to compare with, by the settings that differ.
    """

    run: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    peers: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()
    clean: bool | None = None
    busy: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    load: tuple[Mapping[str, Any], ...] = ()
    finished: tuple[Row, ...] = ()
    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    oracle: Mapping[str, tuple[tuple[int, str, int], ...]] = field(default_factory=dict)
    optimum: tuple[Mapping[str, Any], ...] = ()
    simulation: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    @property
    def is_replay(self) -> bool:
        """True if the times are computed from costs."""
        return any(row.engine == "replay" for row in self.rows)

    @property
    def own_settings(self) -> dict[str, Any]:
        """The settings that do not repeat the machine's description."""
        return {key: value for key, value in self.settings.items() if self.machine.get(key) != value}

    @property
    def batch(self) -> int:
        """The batch size that most pictures show: the smallest."""
        return min((row.batch for row in self.rows), default=1)

    @property
    def larger(self) -> list[int]:
        return sorted({row.batch for row in self.rows} - {self.batch})

    @property
    def drafters(self) -> list[str]:
        """Every drafter of some round; its index here is its colour in every picture."""
        names = [name for rounds in self.rounds.values() for name in rounds.names["drafter"]]
        names += [source for sample in self.samples for _, source in sample.pieces]
        return [name for name in dict.fromkeys(names) if name not in ("none", "target")]

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(row.category for row in self.rows if row.category != "all"))

    def of(self, category: str = "all", batch: int = 0) -> list[Row]:
        """Return the rows of a category at a batch size, the fastest first; 0 is the smallest batch."""
        rows = [row for row in self.rows if row.category == category and row.batch == (batch or self.batch)]
        return sorted(rows, key=lambda row: -row.speedup if row.speedup == row.speedup else 0.0)

    def number(self, method: str) -> int:
        """Return the number of a method, by row name: its colour in every picture that has a series of it."""
        names = [row.name for row in self.of() if row.kind != "plain"]
        return names.index(method) if method in names else len(names)

    def kinds(self, *kinds: str) -> list[Row]:
        """Return the total rows of these kinds, the fastest first."""
        return [row for row in self.of() if row.kind in kinds]

    def adaptive(self, most: int) -> list[str]:
        """Return the fastest adaptive methods whose rounds were recorded."""
        return [row.method for row in self.kinds("adaptive") if row.method in self.rounds][:most]


# -- reading ----------------------------------------------------------------------------------------------


def read(folder: Path, beside: Sequence[Path] = ()) -> Results:
    """Read the results in a folder, and the rows of the runs in the folders `beside`."""
    with readable(folder):
        return _read(folder, beside)


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turn any failure to interpret the files of a folder into one line."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(
            f"the results in {folder} are damaged ({reason}): run the command that wrote them again"
        ) from error


def _read(folder: Path, beside: Sequence[Path]) -> Results:
    results, simulation = _read_json(folder / "results.json"), _read_json(folder / "simulation.json")
    if not results and not simulation:
        raise UserError(
            f"{folder} has no results.json: give the folder that bench, replay or simulate wrote with --out"
        )
    rows, oracle = _rows(results), _read_json(folder / "oracle.json")
    batch = min((row.batch for row in rows), default=1)
    peers = results.get("peers", ())
    return Results(
        **{key: dict(results.get(key) or simulation.get(key, {})) for key in ("run", "machine", "settings")},
        rows=rows,
        absent=tuple((a.get("method", "?"), a.get("reason", "")) for a in results.get("absent", ())),
        peers=tuple((str(p["method"]), describe_peer(p)) for p in peers),
        doubts=tuple(f"`{p['method']}`: {d}" for p in peers for d in p["doubts"]),
        clean=results.get("clean"),
        busy=tuple(map(str, results.get("busy", ()))),
        left_out=tuple(map(str, results.get("left_out", ()))),
        load=tuple(sample for sample in results.get("load", ()) if isinstance(sample, Mapping)),
        finished=tuple(map(_finished, _lines(folder / "prompts.jsonl"))),
        rounds=read_rounds(r for r in _lines(folder / "rounds.jsonl") if r.get("batch", batch) == batch),
        samples=tuple(_parse(Sample, line) for line in _lines(folder / "pieces.jsonl")),
        oracle={
            prompt: tuple((int(t), str(d), int(n)) for t, d, n in path)
            for prompt, path in oracle.get("lengths", {}).items()
        },
        optimum=tuple(oracle.get("results", ())),
        simulation=simulation,
        beside=_beside([folder, *beside]) if beside else {},
    )


def _finished(line: Mapping[str, Any]) -> Row:
    """Return what the pictures show of one prompt that one method has decoded."""
    names = ("method", "engine", "category", "batch", "rounds", "seconds")
    row: Row = _parse(Row, {"prompt": line["prompt"]} | {name: line.get(name) for name in names})
    return row


def _rows(results: Mapping[str, Any]) -> tuple[Row, ...]:
    return tuple(_parse(Row, row) for row in results.get("results", ()))


def _beside(folders: Sequence[Path]) -> dict[str, tuple[Row, ...]]:
    """Return the rows of each run, by the settings that differ, or by folder where none does."""
    runs = [_read_json(folder / "results.json") for folder in folders]
    settings = [run.get("settings", {}) for run in runs]
    differ = [key for key in settings[0] if any(other.get(key) != settings[0][key] for other in settings)]
    rows: dict[str, tuple[Row, ...]] = {}
    for folder, run, own in zip(folders, runs, settings, strict=True):
        if not run:
            raise UserError(f"{folder} has no results.json: give the folder that bench or replay wrote")
        label = ", ".join(f"{key} {own.get(key)}" for key in differ[:2]) or str(folder)
        rows[label if label not in rows else str(folder)] = _rows(run)
    return rows


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, record in read_lines(path, "remove it"):
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: not a JSON object; remove it")
        yield record


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); run the command that wrote it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object; run the command that wrote it again")
    return content


def _parse(kind: Any, record: Mapping[str, Any]) -> Any:
    """Make an instance of `kind` from a record; unknown fields and nulls are ignored."""
    values = {f.name: record[f.name] for f in fields(kind) if record.get(f.name) is not None}
    for name, hint in _hints(kind).items():
        if name in values:
            _check_type(name, values[name], hint)
    if "prompt" in values:
        values["prompt"] = str(values["prompt"])
    if "pieces" in values:
        values["pieces"] = tuple((str(text), str(source)) for text, source in values["pieces"])
    if "interval" in values:
        low, high = (nan if x is None else _check_type("interval", x, float) for x in values["interval"])
        values["interval"] = low, high
    return kind(**values)


_hints = cache(get_type_hints)


def _check_type(name: str, value: Any, hint: Any) -> Any:
    """Return the value, if its type is the one that `hint` asks for."""
    kinds: Any = {int: (int, float), float: (int, float), str: (str, int)}.get(hint)
    if kinds is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise ValueError(f"{name} is {value!r}")
    if hint in (Mapping[str, int], Mapping[str, float]):
        for inner, number in dict(value).items():
            _check_type(f"{name} {inner}", number, float)
    return value

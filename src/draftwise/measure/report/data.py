"""What a folder of results holds, read once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, get_type_hints

from ...errors import UserError
from .rounds import Rounds, read_rounds

OURS = ("draftwise", "replay")
FEWEST = 5  # prompts; fewer are too few to say by resampling how far a ratio is certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one method did in one category; `category` is "all" for the total. NaN where it is not known.

    One run may have rows at several batch sizes.
    """

    method: str
    engine: str = "draftwise"
    category: str = "all"
    batch: int = 1
    prompts: int = 0
    new_tokens: int = 0
    seconds: float = nan
    tokens_per_s: float = nan
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
        """The method, with the engine before it where that is another's."""
        own = self.engine in OURS or self.method.startswith(self.engine)
        return self.method if own else f"{self.engine} {self.method}"

    @property
    def kind(self) -> str:
        """ "plain", "fixed" (one arm for all rounds), "adaptive" or "peer"."""
        if self.engine not in OURS:
            return "peer"
        if self.method == "none":
            return "plain"
        return "adaptive" if len(self.pulls) > 1 else "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One prompt that one method has finished."""

    method: str
    prompt: str
    engine: str = "draftwise"
    category: str = ""
    batch: int = 1
    rounds: int = 0
    seconds: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A text as pieces of (text, who guessed it); the target's own pieces have the source "target"."""

    method: str
    prompt: str
    category: str = ""
    pieces: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that is in the folder; what is not there is empty, and `clean` None is not known.

    `oracle` is the least-time path of each prompt: (position, drafter, length) from round to round.
    `optimum` has what the least time was, beside fixed arms, one record a category.
    `beside` are the rows of other runs to compare with, by what tells each from the others.
    """

    machine: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    clean: bool | None = None
    busy: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    load: tuple[Mapping[str, Any], ...] = ()
    finished: tuple[Finished, ...] = ()
    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    oracle: Mapping[str, tuple[tuple[int, str, int], ...]] = field(default_factory=dict)
    optimum: tuple[Mapping[str, Any], ...] = ()
    simulation: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    @property
    def own_settings(self) -> dict[str, Any]:
        """The settings that do not repeat what is said of the machine."""
        return {key: value for key, value in self.settings.items() if self.machine.get(key) != value}

    @property
    def batch(self) -> int:
        """The batch size that most pictures show: the smallest."""
        return min((row.batch for row in self.rows), default=1)

    @property
    def drafters(self) -> list[str]:
        """Everyone who drafted in some round; their places here are their colours in every picture."""
        found = dict.fromkeys(name for rounds in self.rounds.values() for name in rounds.names["drafter"])
        texts = dict.fromkeys(source for sample in self.samples for _, source in sample.pieces)
        return [name for name in {**found, **texts} if name not in ("none", "target")]

    @property
    def categories(self) -> list[str]:
        """All categories in the order of the rows, without the total."""
        return list(dict.fromkeys(row.category for row in self.rows if row.category != "all"))

    @property
    def larger(self) -> list[int]:
        """The other batch sizes."""
        return sorted({row.batch for row in self.rows} - {self.batch})

    def of(self, category: str = "all", batch: int = 0) -> list[Row]:
        """The rows of a category at a batch size, the fastest first; 0 is the smallest batch."""
        mine = [row for row in self.rows if row.category == category and row.batch == (batch or self.batch)]
        return sorted(mine, key=lambda row: -row.speedup if row.speedup == row.speedup else 0.0)

    def kinds(self, *kinds: str) -> list[Row]:
        """The total rows of these kinds, the fastest first."""
        return [row for row in self.of() if row.kind in kinds]

    def adaptive(self, most: int) -> list[str]:
        """The fastest methods that chose among several arms and whose rounds are here."""
        return [row.method for row in self.kinds("adaptive") if row.method in self.rounds][:most]


def read(folder: Path, beside: Sequence[Path] = ()) -> Results:
    """Everything in the folder, and the rows of the runs in the folders `beside`.

    Raises:
        UserError: there is no `results.json` and no `simulation.json`, or a file cannot be read.
    """
    with readable(folder):
        return _read(folder, beside)


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Say in one line that what a folder holds is not what was written there.

    Raises:
        UserError: a file has another shape, or text where a number should be.
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
        machine=dict(results.get("machine") or simulation.get("machine", {})),
        settings=dict(results.get("settings") or simulation.get("settings", {})),
        rows=rows,
        absent=tuple((a.get("method", "?"), a.get("reason", "")) for a in results.get("absent", ())),
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
    """The rows of each run, by the settings in which they differ; by folder where they do not."""
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
    """The records of a JSON Lines file; a last line that an interruption cut short is left out.

    Raises:
        UserError: another line is damaged.
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
                raise UserError(f"{path}, line {number}: no record; remove it")
            yield found


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); run the command that wrote it again") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: no results; run the command that wrote it again")
    return found


def _known(kind: Any, record: Mapping[str, Any]) -> Any:
    """A record as its class; what the class does not know is left out, and null counts as not there."""
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
    """The value, if it is a number where a number should be, a text where a text, and numbers by name."""
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

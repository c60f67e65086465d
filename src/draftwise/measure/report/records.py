"""What a report is made from: rows of results, finished prompts, sample texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

from .rounds import Rounds

OURS = ("draftwise", "replay")
FEWEST = 5  # prompts; bootstrap intervals over fewer prompts mean nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The results of one method in one category; `category` is "all" for the total. NaN means unknown.

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
        """The method; the name of another engine stands before it."""
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
    """One prompt that one method has decoded."""

    method: str
    prompt: str
    engine: str = "draftwise"
    category: str = ""
    batch: int = 1
    rounds: int = 0
    seconds: float = nan


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
    finished: tuple[Finished, ...] = ()
    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    oracle: Mapping[str, tuple[tuple[int, str, int], ...]] = field(default_factory=dict)
    optimum: tuple[Mapping[str, Any], ...] = ()
    simulation: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    @property
    def own_settings(self) -> dict[str, Any]:
        """The settings that do not repeat the machine's description."""
        return {key: value for key, value in self.settings.items() if self.machine.get(key) != value}

    @property
    def batch(self) -> int:
        """The batch size that most pictures show: the smallest."""
        return min((row.batch for row in self.rows), default=1)

    @property
    def drafters(self) -> list[str]:
        """Every drafter of some round; its index here is its colour in every picture."""
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

    def number(self, method: str) -> int:
        """Return the number of a method, by row name: its colour in every picture that has a series of it."""
        names = [row.name for row in self.of() if row.kind != "plain"]
        return names.index(method) if method in names else len(names)

    def kinds(self, *kinds: str) -> list[Row]:
        """The total rows of these kinds, the fastest first."""
        return [row for row in self.of() if row.kind in kinds]

    def adaptive(self, most: int) -> list[str]:
        """The fastest adaptive methods whose rounds were recorded."""
        return [row.method for row in self.kinds("adaptive") if row.method in self.rounds][:most]

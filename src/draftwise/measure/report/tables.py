"""The tables of a report, for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from .records import Results, Row

NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of a cell, its sort key, and whether it marks a method as slower than plain decoding."""

    text: str
    key: float | None = None
    slower: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The headings of the columns, and rows with one cell per column; `is_words` if it has no numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    is_words: bool = False


def number(value: float, digits: int = 2, unit: str = "") -> Cell:
    """Return a number, or a dash where it is unknown."""
    return Cell(f"{value:,.{digits}f}{unit}", value) if value == value else Cell(NOTHING)


def methods(rows: Sequence[Row]) -> Table:
    """Return one row per method; columns without any value are omitted."""
    columns: dict[str, Callable[[Row], Cell]] = {
        "method": lambda row: Cell(row.name),
        "speed-up": _speedup,
        "95 % interval": lambda row: _interval(row.interval),
        "mean of ratios": lambda row: number(row.mean_of_ratios),
        "share of optimum": lambda row: number(100 * row.fraction_of_optimum, 1, " %"),
        "tokens/s": lambda row: number(row.tokens_per_s, 1),
        "TTFT": lambda row: number(row.ttft_s, 2, " s"),
        "TPOT": lambda row: number(1000 * row.tpot_s, 1, " ms"),
        "accepted per round": lambda row: number(row.mean_accepted),
        "block efficiency": lambda row: number(row.tokens_per_round),
        "acceptance rate": lambda row: number(100 * row.acceptance_rate, 0, " %"),
        "identical texts": lambda row: (
            Cell(NOTHING) if row.identical < 0 else Cell(f"{row.identical} of {row.prompts}", row.identical)
        ),
        "prompts": lambda row: number(row.prompts, 0),
        "tokens": lambda row: number(row.new_tokens, 0),
        "seconds": lambda row: number(row.seconds, 1),
    }
    cells = {head: [make(row) for row in rows] for head, make in columns.items()}
    filled = {head: column for head, column in cells.items() if any(cell.text != NOTHING for cell in column)}
    return Table(list(filled), list(zip(*filled.values(), strict=True)))


def optimum(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return the least possible time of each category, and the time of the alternatives."""
    times = ("best fixed arm", "its time", "DISCO's oracle", "plain decoding")
    rows = []
    for row in records:
        least, fixed = float(row["optimum"]), row["best_fixed"]
        just = min(row.get("exactly", {}).values(), default=nan)
        arm = f"{fixed['drafter']}:{fixed['length']}" if fixed["length"] else "none"
        alternatives = [_time_and_share(seconds, least) for seconds in (fixed["seconds"], just, row["none"])]
        first = (Cell(row["category"]), number(row["new_tokens"], 0), number(least, 2, " s"))
        rows.append((*first, Cell(arm), *alternatives))
    return Table(("category", "tokens", "optimum", *times), rows)


def _time_and_share(seconds: float, least: float) -> Cell:
    is_known = seconds == seconds and seconds > 0
    return Cell(f"{seconds:,.2f} s ({100 * least / seconds:.0f} %)", seconds) if is_known else Cell(NOTHING)


def policies(simulation: Mapping[str, Any]) -> Table:
    """Return one row per policy of a simulation, the one with the least regret in time first."""
    heads = ("policy", "rounds", "regret (rounds)", "regret (seconds)", "share of best arm", "switches")
    rows = [
        (
            Cell(policy["policy"]),
            number(policy["rounds"], 1),
            _spread(policy["rounds_regret"][-1], policy["rounds_regret_error"][-1]),
            _spread(policy["seconds_regret"][-1], policy["seconds_regret_error"][-1]),
            number(100 * policy["best_choices"], 1, " %"),
            number(policy["switches"], 1),
        )
        for policy in sorted(simulation["policies"], key=lambda policy: float(policy["seconds_regret"][-1]))
    ]
    return Table(heads, rows)


def simulated_arms(simulation: Mapping[str, Any]) -> Table:
    """Return the rounds and the time of each arm if it is played throughout."""
    heads = ("arm", "drafter", "draft length", "seconds per round", "rounds", "seconds")
    rows = [
        (
            Cell(arm["name"]),
            number(arm["drafter"] + 1, 0),
            number(arm["length"], 0),
            number(arm["seconds"]),
            number(arm["rounds"], 1),
            number(arm["total_seconds"], 1),
        )
        for arm in simulation["arms"]
    ]
    return Table(heads, rows)


def texts(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return Table(heads, [list(map(Cell, row)) for row in rows], is_words=True)


def pairs(settings: Mapping[str, Any]) -> Table:
    """Return names and values, nested ones as `outer inner`."""
    return texts(("name", "value"), flat(settings))


def flat(settings: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Yield the leaves of nested settings as words."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name} ")
        elif isinstance(value, (list, tuple)):
            nested = any(isinstance(part, (list, tuple)) for part in value)
            yield before + name, (" / " if nested else ", ").join(map(as_text, value)) or NOTHING
        else:
            yield before + name, as_text(value)


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(as_text, value)) or NOTHING
    return f"{value:.6g}" if isinstance(value, float) else NOTHING if value in (None, "") else str(value)


def _speedup(row: Row) -> Cell:
    slower = row.speedup < 1.0 and row.kind != "plain"
    return Cell(number(row.speedup).text + (" slower" if slower else ""), row.speedup, slower)


def _interval(interval: tuple[float, float]) -> Cell:
    low, high = interval
    return Cell(f"{low:.2f} to {high:.2f}", low) if low == low and high == high else Cell(NOTHING)


def _spread(mean: float, error: float | None) -> Cell:
    """A mean over seeds and its standard error; a single seed has none."""
    is_known = error is not None and error == error
    return Cell(f"{mean:,.1f} ± {error:,.1f}" if is_known else f"{mean:,.1f}", mean)


def share_identical(results: Results) -> tuple[int, int]:
    """Return how many texts are identical to plain decoding's, and how many were compared, of our methods."""
    rows = [row for row in results.kinds("adaptive", "fixed") if row.identical >= 0]
    return sum(row.identical for row in rows), sum(row.prompts for row in rows)

"""Speed-ups with their intervals, time by phase, and throughput by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..colours import INK, OWN, colour
from ..records import FEWEST, Results, Row
from ..style import EDGE, MARKERS, below, hatch, look, panels, row_names, stack, tall
from .missing import Missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"adaptive": "o", "fixed": "s", "peer": "^", "plain": "|"}  # in ink: colours are for methods
SAID = {
    "adaptive": "adaptive policy",
    "fixed": "fixed arm",
    "peer": "peer (another engine)",
    "plain": "plain decoding",
}
MOST = 8
SMALL = 0.01  # of the longest bar: a smaller phase cannot be seen: it counts as "other"
SPEEDUP = "speed-up over plain decoding (\N{MULTIPLICATION SIGN})"


def measured(results: Results, category: str = "all") -> list[Row]:
    """The rows with a speed-up, the fastest first.

    Raises:
        Missing: there are none.
    """
    rows = [row for row in results.of(category) if row.speedup == row.speedup]
    if not rows:
        raise Missing(
            "no speed-up was measured", "a run with `none` among its policies, which is the baseline"
        )
    return rows


def _errors(rows: Sequence[Row]) -> Any:
    """Distances of the interval's ends from the speed-up, shape (2, rows); 0 where there is no interval."""
    low, high = np.array([row.interval for row in rows]).T
    middle = np.array([row.speedup for row in rows])
    return np.maximum(np.nan_to_num(np.array([middle - low, high - middle])), 0.0)


def _intervals(rows: Sequence[Row]) -> str:
    """The number of prompts behind the intervals, or why there are no intervals."""
    if all(row.interval[0] != row.interval[0] for row in rows):
        return f"no intervals: fewer than {FEWEST} prompts"
    return f"95 % intervals over {max(row.prompts for row in rows)} prompts"


def speedup(results: Results) -> Figure:
    """Every method over all prompts, the fastest at the top."""
    rows = measured(results)[::-1]
    # Beside the name, so that a narrow screen shows it before it is scrolled.
    names = [f"{row.name} {row.speedup:.2f}" for row in rows]
    figure, (ax,) = panels(height=tall(names))
    errors = _errors(rows)
    for kind, marker in KINDS.items():
        at = [i for i, row in enumerate(rows) if row.kind == kind]
        if at:
            values = [rows[i].speedup for i in at]
            ax.errorbar(values, at, xerr=errors[:, at], fmt=marker, color=INK, capsize=2, label=SAID[kind])
    ax.axvline(1.0, color=INK, linewidth=0.8)
    row_names(ax, names)
    ax.set(xlabel=f"{SPEEDUP}, {_intervals(rows)}", ylim=(-0.7, len(rows) - 0.3))
    ax.margins(x=0.09)
    below(figure, ax, columns=4)
    return figure


def featured(results: Results) -> list[Row]:
    """The three fastest adaptive policies, the two fastest fixed arms and peers, and the slowest method.

    Plain decoding is the baseline, and not among them.
    """
    rows = [row for row in measured(results) if row.kind != "plain"]
    picked = [
        row
        for kind, most in (("adaptive", 3), ("fixed", 2), ("peer", 2))
        for row in [r for r in rows if r.kind == kind][:most]
    ]
    return [*picked, *(row for row in rows[-1:] if row not in picked)]


def intervals(results: Results) -> Figure:
    """The featured methods in every category."""
    methods = [row.name for row in featured(results)]
    categories = results.categories
    if not categories or not methods:
        raise Missing("the run has no categories", "a workload with categories, such as `spec-bench`")
    figure, (ax,) = panels(height=max(0.11 * len(methods) + 0.12, 0.2) * len(categories) + 0.6)
    apart = 0.8 / len(methods)
    for i, name in enumerate(methods):
        found = {
            c: row
            for c in categories
            for row in results.of(c)
            if row.name == name and row.speedup == row.speedup
        }
        at = [categories.index(c) + (i - (len(methods) - 1) / 2) * apart for c in found]
        rows = list(found.values())
        ax.errorbar(
            [r.speedup for r in rows],
            at,
            xerr=_errors(rows) if rows else None,
            fmt=MARKERS[results.number(name) % 8],
            markersize=4,
            color=colour(results.number(name)),
            capsize=1.5,
            linewidth=1.0,
            label=name,
        )
    for border in range(1, len(categories)):
        ax.axhline(border - 0.5, color=OWN, linewidth=0.5)
    ax.axvline(1.0, color=INK, linewidth=0.8)
    most = {c: max(row.prompts for row in results.of(c)) for c in categories}
    row_names(ax, [f"{c} (n = {most[c]})" if most[c] else c for c in categories])
    known = any(row.prompts >= FEWEST for c in categories for row in results.of(c))
    said = f"95 % intervals where n is at least {FEWEST}" if known else f"no intervals: n is below {FEWEST}"
    ax.set(xlabel=f"{SPEEDUP}, {said}")
    ax.set_ylim(len(categories) - 0.5, -0.5)
    below(figure, ax, columns=2)
    return figure


def phases(results: Results) -> Figure:
    """Milliseconds per token by phase, the fastest method at the top."""
    rows = [row for row in results.of() if row.seconds_by_phase and row.new_tokens]
    if not rows:
        raise Missing("time by phase", "a run of Draftwise's own methods with `draftwise bench`")
    tokens = np.array([row.new_tokens for row in rows])
    names = list(dict.fromkeys(phase for row in rows for phase in row.seconds_by_phase))
    spent = {name: np.array([row.seconds_by_phase.get(name, 0.0) for row in rows]) for name in names}
    spent["other"] = np.nan_to_num(np.array([row.seconds for row in rows]) - sum(spent.values()))
    longest = max(sum(spent.values()) / tokens)
    numbers = {name: i for i, name in enumerate(names)}
    for name in [name for name in names if (spent[name] / tokens).max() < SMALL * longest]:
        spent["other"] = spent["other"] + spent.pop(name)
    if (spent["other"] / tokens).max() < SMALL / 2 * longest:
        del spent["other"]
    parts = {name: (np.maximum(s, 0.0) / tokens * 1e3, numbers.get(name, -1)) for name, s in spent.items()}
    methods = [row.name for row in rows]
    figure, (ax,) = panels(height=tall(methods))
    stack(ax, methods, parts)
    ax.set(xlabel="time per token (ms)")
    below(figure, ax, columns=7)
    return figure


def batches(results: Results) -> Figure:
    """Throughput by batch size, one line per method: BanditSpec (arXiv 2505.15141), Figure 1."""
    by_name: dict[str, dict[int, float]] = {}
    for row in results.rows:
        if row.category == "all" and row.tokens_per_s == row.tokens_per_s:
            by_name.setdefault(row.name, {})[row.batch] = row.tokens_per_s
    lines = [(name, found) for name, found in by_name.items() if len(found) > 1][:MOST]
    if not lines:
        raise Missing(
            "only one batch size was run",
            "`draftwise bench` with `none,static-1,static-2,static-3,static-4` and several batch sizes",
        )
    figure, (ax,) = panels(height=3.0)
    for name, found in lines:
        ax.plot(
            sorted(found),
            [found[size] for size in sorted(found)],
            marker=MARKERS[results.number(name) % 8],
            label=name,
            **look(results.number(name)),
        )
    sizes = sorted({size for _, found in lines for size in found})
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set(xlabel="batch size (requests)", ylabel="throughput (tokens/s)", ylim=(0, None))
    below(figure, ax)
    return figure


def beside(results: Results) -> Figure:
    """The same methods in several runs. With the workloads `mixed` and `phased`: MetaSD (arXiv 2604.05417),
    Table 17."""
    if not results.beside:
        raise Missing("other runs to compare with", "`draftwise report DIR --beside OTHER`")
    totals = [[row for row in rows if row.category == "all"] for rows in results.beside.values()]
    batch = max(set.intersection(*({row.batch for row in rows} for rows in totals)), default=0)
    runs = [{row.name: row.speedup for row in rows if row.batch == batch} for rows in totals]
    names = [name for name in runs[0] if name != "none" and all(name in run for run in runs)]
    if not names:
        raise Missing("methods that all these runs have at the same batch size", "runs of the same policies")
    figure, (ax,) = panels(height=tall(names, 0.17 * len(runs) + 0.1))
    thick = 0.8 / len(runs)
    for i, (label, run) in enumerate(zip(results.beside, runs, strict=True)):
        at = np.arange(len(names)) + (i - (len(runs) - 1) / 2) * thick
        speedups = [run[name] for name in names]
        bars = ax.barh(at, speedups, 0.92 * thick, label=label, color=colour(i), hatch=hatch(i), **EDGE)
        ax.bar_label(bars, fmt=" %.2f", fontsize=7.5)
    ax.axvline(1.0, color=INK, linewidth=0.8)
    row_names(ax, names)
    ax.set(xlabel=f"{SPEEDUP}, batch size {batch}")
    ax.set_xlim(left=0.0)
    ax.margins(x=0.07)
    ax.invert_yaxis()
    below(figure, ax, columns=2)
    return figure

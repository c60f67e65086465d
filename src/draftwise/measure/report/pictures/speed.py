"""Speed-ups with their intervals and by category, time by phase, and throughput by batch size.

Sources: BanditSpec (arXiv 2505.15141), MetaSD (arXiv 2604.05417).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...results import FEWEST
from ..records import Floats, Results, Row
from ..style import (
    EDGE,
    INK,
    LIGHT,
    MARKERS,
    OWN,
    SPEEDUPS,
    colour,
    hatch,
    legend_below,
    line_style,
    panels,
    ratio_scale,
    ratio_ticks,
    readable,
    row_names,
    stack,
    tall,
    wrapped,
)
from .picture import Gallery, need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {  # in ink: colours are for methods
    "adaptive": ("o", "adaptive policy"),
    "fixed": ("s", "fixed arm"),
    "peer": ("^", "peer (another engine)"),
    "plain": ("|", "plain decoding"),
}
MOST = 8
SMALL = 0.01  # of the longest bar: a smaller phase cannot be seen: it counts as "other"
CELL = 0.54  # inches, of the heat map
SPEEDUP = "speed-up over plain decoding (\N{MULTIPLICATION SIGN})"
CATEGORIES = "a workload with categories, such as `spec-bench`"
PICTURES = Gallery("Speed")


@PICTURES.add("Speed-up by method")
def speedup(results: Results) -> Figure:
    """Total time of plain decoding divided by that of the method, on the same prompts. Lines are 95 %
    bootstrap intervals over prompts (at least five prompts). Methods left of the line at 1 are slower than
    plain decoding. The axis does not start at zero.
    """
    rows = measured(results)[::-1]
    # Beside the name, so that a narrow screen shows it before it is scrolled.
    names = [f"{row.name} {row.speedup:.2f}" for row in rows]
    figure, (ax,) = panels(height=tall(names))
    errors = _errors(rows)
    for kind, (marker, label) in KINDS.items():
        at = [i for i, row in enumerate(rows) if row.kind == kind]
        if at:
            values = [rows[i].speedup for i in at]
            ax.errorbar(values, at, xerr=errors[:, at], fmt=marker, color=INK, capsize=2, label=label)
    ax.axvline(1.0, color=INK, linewidth=0.8)
    row_names(ax, names)
    intervals = f"95 % intervals over {max(row.prompts for row in rows)} prompts"
    if all(row.interval[0] != row.interval[0] for row in rows):
        intervals = f"no intervals: fewer than {FEWEST} prompts or batches"
    ax.set(xlabel=f"{SPEEDUP}, {intervals}", ylim=(-0.7, len(rows) - 0.3))
    ax.margins(x=0.09)
    legend_below(figure, ax, columns=4)
    return figure


@PICTURES.add("Speed-up by category, with intervals")
def intervals(results: Results) -> Figure:
    """The fastest methods of each kind and the slowest method; the heat map below has every method. The line
    at 1 is plain decoding. The axis does not start at zero.
    """
    methods = [row.name for row in featured(results)]
    categories = results.categories
    need(categories and methods, "the run has no categories", CATEGORIES)
    figure, (ax,) = panels(height=max(0.11 * len(methods) + 0.12, 0.2) * len(categories) + 0.6)
    by_category = {c: results.of(c) for c in categories}
    for i, name in enumerate(methods):
        offset, number = (i - (len(methods) - 1) / 2) * 0.8 / len(methods), results.number(name)
        known = {at: r for at, of in enumerate(by_category.values()) for r in of if r.name == name}
        known = {at: row for at, row in known.items() if row.speedup == row.speedup}
        ax.errorbar(
            [row.speedup for row in known.values()],
            [at + offset for at in known],
            xerr=_errors(list(known.values())) if known else None,
            fmt=MARKERS[number % 8],
            markersize=4,
            color=colour(number),
            capsize=1.5,
            linewidth=1.0,
            label=name,
        )
    for border in range(1, len(categories)):
        ax.axhline(border - 0.5, color=OWN, linewidth=0.5)
    ax.axvline(1.0, color=INK, linewidth=0.8)
    prompts = {c: max(row.prompts for row in of) for c, of in by_category.items()}
    row_names(ax, [f"{c} (n = {n})" if n else c for c, n in prompts.items()])
    has_any = max(prompts.values()) >= FEWEST
    about = (
        f"95 % intervals where n is at least {FEWEST}" if has_any else f"no intervals: n is below {FEWEST}"
    )
    ax.set(xlabel=f"{SPEEDUP}, {about}")
    ax.set_ylim(len(categories) - 0.5, -0.5)
    legend_below(figure, ax, columns=2)
    return figure


@PICTURES.add("Speed-up of every method by category")
def categories(results: Results) -> Figure:
    """Purple is faster than plain decoding, orange slower. The colour scale is logarithmic: 0.5 and 2 are
    equally strong.
    """
    names, columns = [row.name for row in measured(results)], ["all", *results.categories]
    need(len(columns) > 2, "the run has fewer than two categories", CATEGORIES)
    by_place = {(row.name, c): row.speedup for c in columns for row in results.of(c)}
    grid = np.array([[by_place.get((name, c), np.nan) for c in columns] for name in names])
    figure, (ax,) = panels(width=3.4 + CELL * len(columns), height=max(tall(names, 0.23, 1.3), 2.2))
    _heat_map(figure, ax, grid)
    ax.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    ax.set(xlabel="category", ylabel="method")
    ax.set_yticks(range(len(names)), [wrapped(name) for name in names])
    return figure


@PICTURES.add("Time per token by phase")
def phases(results: Results) -> Figure:
    """Where the time of each method goes, the fastest method at the top."""
    rows = [row for row in results.of() if row.seconds_by_phase and row.new_tokens]
    need(rows, "time by phase", "a run of Draftwise's own methods with `draftwise bench`")
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
    legend_below(figure, ax, columns=7)
    return figure


@PICTURES.add("Throughput by batch size")
def batches(results: Results) -> Figure:
    """After BanditSpec, Figure 1: the best draft length decreases as the batch size grows."""
    by_name: dict[str, dict[int, float]] = {}
    for row in results.rows:
        if row.category == "all" and row.tokens_per_s == row.tokens_per_s:
            by_name.setdefault(row.name, {})[row.batch] = row.tokens_per_s
    lines = [(name, rates) for name, rates in by_name.items() if len(rates) > 1][:MOST]
    need(
        lines,
        "only one batch size was run",
        "`draftwise bench` with `none,static-1,static-2,static-3,static-4` and several batch sizes",
    )
    figure, (ax,) = panels(height=3.0)
    for name, rates in lines:
        number, sizes = results.number(name), sorted(rates)
        values = [rates[size] for size in sizes]
        ax.plot(sizes, values, marker=MARKERS[number % 8], label=name, **line_style(number))
    sizes = sorted({size for _, rates in lines for size in rates})
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set(xlabel="batch size (requests)", ylabel="throughput (tokens/s)", ylim=(0, None))
    legend_below(figure, ax)
    return figure


@PICTURES.add("Comparison with other runs")
def beside(results: Results) -> Figure:
    """With the workloads `mixed` and `phased` at a batch size above 1 this is MetaSD, Table 17: batches of
    several categories against batches of one category.
    """
    need(results.beside, "other runs to compare with", "`draftwise report DIR --beside OTHER`")
    totals = [[row for row in rows if row.category == "all"] for rows in results.beside.values()]
    batch = max(set.intersection(*({row.batch for row in rows} for rows in totals)), default=0)
    runs = [{row.name: row.speedup for row in rows if row.batch == batch} for rows in totals]
    names = [name for name in runs[0] if name != "none" and all(name in run for run in runs)]
    need(names, "methods that all these runs have at the same batch size", "runs of the same policies")
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
    legend_below(figure, ax, columns=2)
    return figure


def measured(results: Results) -> list[Row]:
    """Return the total rows with a speed-up, the fastest first."""
    rows = [row for row in results.of() if row.speedup == row.speedup]
    need(rows, "no speed-up was measured", "a run with `none` among its policies, which is the baseline")
    return rows


def featured(results: Results) -> list[Row]:
    """Return the three fastest adaptive policies, two fastest fixed arms and peers, and the slowest method.

    Plain decoding is the baseline, and not among them.
    """
    rows = [row for row in measured(results) if row.kind != "plain"]
    counts = (("adaptive", 3), ("fixed", 2), ("peer", 2))
    picked = [row for kind, most in counts for row in [r for r in rows if r.kind == kind][:most]]
    return [*picked, *(row for row in rows[-1:] if row not in picked)]


def _errors(rows: Sequence[Row]) -> Any:
    """Return distances of the interval's ends from the speed-up, shape (2, rows); 0 without an interval."""
    low, high = np.array([row.interval for row in rows]).T
    middle = np.array([row.speedup for row in rows])
    return np.maximum(np.nan_to_num(np.array([middle - low, high - middle])), 0.0)


def _heat_map(figure: Figure, ax: Axes, grid: Floats) -> None:
    """Draw a cell for each ratio with its number, and a colour bar; a cell without a number is unknown."""
    scale = ratio_scale(grid.ravel().tolist())
    cells: Any = {"edgecolors": LIGHT, "linewidth": 0.6, "shading": "nearest"}
    down, across = (range(count) for count in grid.shape)
    mesh: Any = ax.pcolormesh(across, down, np.ma.masked_invalid(grid), cmap=SPEEDUPS, norm=scale, **cells)
    ax.invert_yaxis()
    for (i, j), value in np.ndenumerate(grid):
        text, hue = (
            (f"{value:.2f}", readable(mesh.to_rgba(value))) if value == value else ("\N{EN DASH}", INK)
        )
        ax.text(j, i, text, ha="center", va="center", fontsize=7.5, color=hue)
    ax.grid(visible=False)
    bar: Any = figure.colorbar(mesh, ax=ax, aspect=14, fraction=0.05, pad=0.02)
    bar.solids.set(rasterized=False, edgecolor="face")  # no bitmap, no gaps between the colours
    ticks = ratio_ticks(float(scale.vmin or 0.0), float(scale.vmax or 0.0))
    bar.set_ticks(ticks, labels=[f"{round(tick, 2):g} \N{MULTIPLICATION SIGN}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label("speed-up, log scale")

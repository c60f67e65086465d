"""Speed-ups of all methods in all categories as a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..colours import INK, LIGHT, SPEEDUPS, ratio_ticks, ratios, readable
from ..labels import wrapped
from ..records import Results
from ..rounds import Floats
from ..style import panels, tall
from .missing import Missing
from .speed import measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = 0.54  # inches


def categories(results: Results) -> Figure:
    """Every method by category on a logarithmic scale centred at 1: purple is faster than plain decoding."""
    names, columns = [row.name for row in measured(results)], ["all", *results.categories]
    if len(columns) < 3:
        raise Missing(
            "the run has fewer than two categories", "a workload with categories, such as `spec-bench`"
        )
    by_place = {(row.name, c): row.speedup for c in columns for row in results.of(c)}
    grid = np.array([[by_place.get((name, c), np.nan) for c in columns] for name in names])
    figure, (ax,) = panels(width=3.4 + CELL * len(columns), height=max(tall(names, 0.23, 1.3), 2.2))
    speedups(figure, ax, grid)
    ax.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    ax.set(xlabel="category", ylabel="method")
    ax.set_yticks(range(len(names)), [wrapped(name) for name in names])
    return figure


def speedups(figure: Figure, ax: Axes, grid: Floats) -> None:
    """A cell for each ratio with its number, and a colour bar; a cell without a number is unknown."""
    scale = ratios(grid.ravel().tolist())
    cells: Any = {"edgecolors": LIGHT, "linewidth": 0.6, "shading": "nearest"}
    down, across = (range(count) for count in grid.shape)
    mesh: Any = ax.pcolormesh(across, down, np.ma.masked_invalid(grid), cmap=SPEEDUPS, norm=scale, **cells)
    ax.invert_yaxis()
    for (i, j), value in np.ndenumerate(grid):
        if value == value:
            hue = readable(mesh.to_rgba(value))
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=hue)
        else:
            ax.text(j, i, "\N{EN DASH}", ha="center", va="center", fontsize=7.5, color=INK)
    ax.grid(visible=False)
    bar: Any = figure.colorbar(mesh, ax=ax, aspect=14, fraction=0.05, pad=0.02)
    bar.solids.set(rasterized=False, edgecolor="face")  # no bitmap, no gaps between the colours
    low, high = float(scale.vmin or 0.0), float(scale.vmax or 0.0)
    ticks = ratio_ticks(low, high)
    bar.set_ticks(ticks, labels=[f"{round(tick, 2):g} \N{MULTIPLICATION SIGN}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label("speed-up, log scale")

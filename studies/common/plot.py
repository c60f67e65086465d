"""One style for all pictures of `docs/pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, rcsetup

COLOURS = ("#0b6e8a", "#d1495b", "#edae49", "#5b8e4f", "#7a5195", "#8d6a4f", "#444444", "#9aa5b1")

STYLE: Any = {
    "axes.grid": True,
    "axes.prop_cycle": rcsetup.cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",  # letters stay letters: small files, and text that can be found
    "svg.hashsalt": "draftwise",  # the same numbers give the same file
}


def panels(count: int = 1, *, width: float = 3.7, height: float = 2.8) -> tuple[Any, list[Any]]:
    """A figure and its axes, side by side; sizes of one panel in inches."""
    pyplot.rcParams.update(STYLE)
    figure, axes = pyplot.subplots(1, count, figsize=(width * count, height), layout="constrained")
    return figure, [axes] if count == 1 else list(axes)


def save(figure: Any, path: Path) -> None:
    """Write one SVG without the date, so that it changes only with the numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)

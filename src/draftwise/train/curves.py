"""Plots of loss and acceptance over the steps of a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def curves(log: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Plot the log's loss on the left, and the measurements on held-out text on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=11)
    _line(left, log, "loss", "#2b6cb0")
    left.set(xlabel="step", ylabel="loss on the training text")
    names = sorted({name for row in log for name in row} - {"step", "loss"})
    for name, colour in zip(names, ("#2f855a", "#b7791f", "#6b46c1", "#c53030") * len(names), strict=False):
        _line(right, log, name, colour)
    right.set(xlabel="step", ylabel="on text held out")
    if names:
        right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=144)


def _line(axes: Any, log: Sequence[dict[str, Any]], name: str, colour: str) -> None:
    points = [(row["step"], row[name]) for row in log if name in row]
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, label=name, lw=1.6)

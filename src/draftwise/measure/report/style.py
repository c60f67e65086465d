"""How every picture looks: one place for colours, sizes and files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .rounds import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, told apart by colour-blind eyes and visible on white and on black
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c8c8c", "#8f6ac8")
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "+++", "|||")
OWN = "#a9adb3"  # the target's own tokens, and rounds without a draft
INK = "#1a1c1f"  # becomes the page's own text colour
DPI = 130
LONG = 32  # letters
PAD = 0.1  # inches: letters of the page may be a little wider than those that places were found with
SCALE = 1.3  # of the picture on the page; letters of 9 points come out like its own small print
EDGE: Any = {"edgecolor": "#ffffff", "linewidth": 0.3}

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "font.size": 9.0,
    "grid.alpha": 0.28,
    "grid.color": "#8c8c8c",
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "text.parse_math": False,  # names may hold dollar signs
    "svg.fonttype": "none",  # letters stay letters: small files, and text that can be found
    "svg.hashsalt": "draftwise",  # the same numbers give the same file
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style, and leave the caller's settings as they are."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def panels(
    count: int = 1, *, columns: int = 2, width: float = 6.6, height: float = 2.6
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes in rows of `columns`; inches for the whole width and for one row."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = min(count, columns)
    down = ceil(count / across)
    figure = Figure(figsize=(width, height * down), layout=ConstrainedLayoutEngine(w_pad=PAD))
    axes = [figure.add_subplot(down, across, i + 1) for i in range(count)]
    return figure, axes


def colour(number: int) -> str:
    """The colour of the series with this number; -1 is grey."""
    return OWN if number < 0 else COLOURS[number % len(COLOURS)]


def look(number: int) -> dict[str, Any]:
    """Colour and line of a series: neighbours differ in both, and colours come again with other lines."""
    line = LINES[(number + number // len(COLOURS)) % len(LINES)]
    return {"color": colour(number), "linestyle": line}


def stack(ax: Axes, rows: Sequence[str], parts: Mapping[str, tuple[Floats, int]]) -> None:
    """Horizontal bars from parts: the widths of each, one a row, and the number of its colour."""
    left = np.zeros(len(rows))
    for label, (widths, number) in parts.items():
        fill: Any = {"color": colour(number), "hatch": hatch(number)}
        ax.barh(range(len(rows)), widths, left=left, label=label, **fill, **EDGE)
        left = left + np.nan_to_num(widths)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def hatch(number: int) -> str:
    """The hatching of the bar with this number, so that colour is not needed to tell bars apart."""
    return "//" if number < 0 else HATCHES[(number + number // len(HATCHES)) % len(HATCHES)]


def name(ax: Axes, method: str) -> None:
    """A method's name above its panel, its options on a line of their own where it is long."""
    ax.set_title(method if len(method) < LONG else method.replace("?", "\n?", 1), loc="left", fontsize=8.5)


def below(figure: Figure, ax: Axes, *, columns: int = 3) -> None:
    """One legend for the figure, below it, in room of its own."""
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        figure.set_figheight(figure.get_figheight() + 0.19 * ceil(len(labels) / columns) + 0.1)
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write the PNG; gives the same picture as SVG for the page, in the page's own ink."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=DPI, facecolor="white")
    figure.set_layout_engine("none")  # the places are found once
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline(buffer.getvalue(), name)


def inline(svg: str, name: str) -> str:
    """An SVG file as part of a page: ids of its own, no fixed size, ink that follows light and dark."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    said = f'role="img" aria-labelledby="{name}-title"'
    shown = rf'<svg viewBox="0 0 \1 \2" style="width:calc({SCALE} * \1pt)" {said}>'
    svg = re.sub(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', shown, svg, count=1)
    return svg.replace(INK, "currentColor")

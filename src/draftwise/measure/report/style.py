"""How every picture looks: sizes, lines, bars, legends and files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..writing import replacing
from .colours import COLOURS, INK, colour
from .labels import brief, rows, wrapped
from .rounds import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "+++", "|||")
DPI = 130
LONG = 44  # letters of a legend's entry
LETTER = 0.066  # inches, of a legend
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


def look(number: int) -> dict[str, Any]:
    """Colour and line of a series: neighbours differ in both, and colours come again with other lines."""
    line = LINES[(number + number // len(COLOURS)) % len(LINES)]
    return {"color": colour(number), "linestyle": line}


def curve(ax: Axes, x: Any, y: Any, *, label: str, **line: Any) -> None:
    """A line; a single point, which has no line, is drawn as a dot."""
    alone = np.isfinite(np.asarray(y, dtype=np.float64)).sum() == 1
    ax.plot(x, y, label=label, marker="o" if alone else None, **line)


def stack(
    ax: Axes,
    names: Sequence[str],
    parts: Mapping[str, tuple[Floats, int]],
    fills: Mapping[str, str] | None = None,
) -> None:
    """Horizontal bars from parts: the widths of each, one per row, and the number of its colour and hatching.

    A part in `fills` has the colour given there, and no hatching.
    """
    left = np.zeros(len(names))
    for label, (widths, number) in parts.items():
        given = (fills or {}).get(label)
        fill: Any = {"color": given or colour(number), "hatch": "" if given else hatch(number)}
        ax.barh(range(len(names)), widths, left=left, label=label, **fill, **EDGE)
        left = left + np.nan_to_num(widths)
    row_names(ax, names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlim(left=0.0)


def row_names(ax: Axes, names: Sequence[str]) -> None:
    """A name beside each row."""
    ax.set_yticks(range(len(names)), rows(names)[0])
    ax.grid(axis="y", visible=False)


def tall(names: Sequence[str], row: float = 0.21, rest: float = 0.7) -> float:
    """The height in inches of a picture with these names beside its rows."""
    lines = rows(names)[1]
    return max(row, 0.155 * lines + 0.06 if lines > 1 else row) * (len(names) + 0.5) + rest - row / 2


def hatch(number: int) -> str:
    """The hatching of the bar with this number, so that colour is not needed to tell bars apart."""
    return "//" if number < 0 else HATCHES[(number + number // len(HATCHES)) % len(HATCHES)]


def name(ax: Axes, method: str, *, columns: int = 1) -> None:
    """A method's name above its panel, one of `columns` side by side."""
    ax.set_title(wrapped(method, 76 // columns), loc="left", fontsize=8.5)


def entries(ax: Axes) -> dict[str, Any]:
    """What the legend of some axes names: only what can be seen in them."""
    handles, labels = ax.get_legend_handles_labels()
    return {
        brief(label, LONG): handle for handle, label in zip(handles, labels, strict=True) if visible(handle)
    }


def visible(handle: Any) -> bool:
    """Whether a labelled line, bar or box has anything to see."""
    if patches := getattr(handle, "patches", None):
        return any(np.nan_to_num(patch.get_width() * patch.get_height()) for patch in patches)
    line = handle[0] if isinstance(handle, tuple) else handle  # of an error bar
    if not hasattr(line, "get_ydata"):
        return True
    points = np.isfinite(np.asarray(line.get_ydata(), dtype=np.float64)).sum()
    return bool(points > 1 or (points and line.get_marker() not in ("None", None, "")))


def legend(ax: Axes, **where: Any) -> None:
    """A legend of some axes, if they have anything to name."""
    if found := entries(ax):
        ax.legend(list(found.values()), list(found), **where)


def below(figure: Figure, *axes: Axes, columns: int = 3) -> None:
    """One legend for all these axes below the figure, in room of its own."""
    found = {label: handle for ax in reversed(axes) for label, handle in entries(ax).items()}
    order = dict.fromkeys(label for ax in axes for label in entries(ax))
    if not found:
        return
    fit = int(figure.get_figwidth() / (LETTER * (max(map(len, found)) + 6)))
    columns = max(1, min(columns, fit, len(found)))
    figure.set_figheight(figure.get_figheight() + 0.19 * ceil(len(found) / columns) + 0.1)
    figure.legend([found[label] for label in order], list(order), loc="outside lower center", ncols=columns)


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write the PNG; gives the same picture as SVG for the page, in the page's own ink."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{name}.png") as part:
        figure.savefig(part, format="png", dpi=DPI, facecolor="white")
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

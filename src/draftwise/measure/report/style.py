"""The looks of every picture: colours, names that fit, sizes, lines, bars, legends and files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, exp, isfinite, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...writing import replacing
from .records import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

# Okabe and Ito 2008: visible on white and on black, and to colour-blind readers
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c8c8c", "#8f6ac8")
OWN = "#a9adb3"  # the target's own tokens, and rounds without a draft
INK = "#1a1c1f"  # becomes the page's own text colour
DARK, LIGHT = "#000000", "#ffffff"  # text on a coloured cell
SPEEDUPS = "PuOr"  # purple and orange, also for colour-blind readers; nearly white in the middle
LENGTHS = "cividis"  # Nuñez, Anderton and Renslow 2018
LEAST = 1.25  # a scale of speed-ups reaches at least from 1 / LEAST to LEAST
RATIOS = (1 / 20, 0.1, 0.2, 1 / 3, 0.5, 2 / 3, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
CLOSE = (0.8, 0.9, 1.0, 1.1, 1.25)  # of a narrow scale

WIDE, LINES = 30, 3  # letters a line and lines of a name beside a picture
JOINTS = re.compile(r"(?<=[?&,/ ])")  # where a name may be broken

MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")
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
    """Make a figure and its axes in rows of `columns`; inches for the whole width and for one row."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = min(count, columns)
    down = ceil(count / across)
    figure = Figure(figsize=(width, height * down), layout=ConstrainedLayoutEngine(w_pad=PAD))
    return figure, [figure.add_subplot(down, across, i + 1) for i in range(count)]


# -- colours ----------------------------------------------------------------------------------------------


def colour(number: int) -> str:
    """Return the colour of the series with this number; -1 is grey."""
    return OWN if number < 0 else COLOURS[number % len(COLOURS)]


def shades(count: int) -> list[str]:
    """Return colours of an ordered series, from light to dark."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps[LENGTHS].reversed()
    return [to_hex(scale(0.05 + 0.7 * i / max(count - 1, 1))) for i in range(count)]  # not nearly black


def line_style(number: int) -> dict[str, Any]:
    """Return colour and dashes of a series: neighbours differ in both, and colours return with others."""
    return {"color": colour(number), "linestyle": DASHES[(number + number // len(COLOURS)) % len(DASHES)]}


def hatch(number: int) -> str:
    """Return the hatching of the bar with this number, so that colour is not needed to tell bars apart."""
    return "//" if number < 0 else HATCHES[(number + number // len(HATCHES)) % len(HATCHES)]


def ratio_scale(values: Iterable[float]) -> LogNorm:
    """Return a logarithmic scale centred at 1: a ratio and its inverse are equally far from the centre."""
    from matplotlib.colors import LogNorm

    most = max([log(LEAST), *(abs(log(value)) for value in values if isfinite(value) and value > 0)])
    return LogNorm(exp(-most), exp(most))


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return round ratios between two ends, 1 among them."""
    return [ratio for ratio in (RATIOS if high >= 1.5 else CLOSE) if low * 0.999 <= ratio <= high * 1.001]


def luminance(rgb: Sequence[float]) -> float:
    """Return the relative luminance of an sRGB colour with parts from 0 to 1 (WCAG 2.2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def readable(background: Sequence[float]) -> str:
    """Return dark or light text, whichever has the higher contrast ratio (WCAG 2.2)."""
    return DARK if luminance(background) + 0.05 > (0.05 * 1.05) ** 0.5 else LIGHT


# -- names ------------------------------------------------------------------------------------------------


def brief(name: str, most: int) -> str:
    """Return the name with at most `most` letters: what is too much is left out in the middle."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{name[-tail:]}"


def wrapped(name: str, width: int = WIDE) -> str:
    """Return the name in at most `LINES` lines of at most `width` letters, broken between its parts."""
    lines = [""]
    for part in JOINTS.split(brief(name, width * LINES)):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    first, rest = lines[: LINES - 1], "".join(lines[LINES - 1 :])
    return "\n".join(brief(line.rstrip(), width) for line in [*first, rest] if line)


def row_names(ax: Axes, names: Sequence[str]) -> None:
    """Write a name beside each row."""
    ax.set_yticks(range(len(names)), [wrapped(name) for name in names])
    ax.grid(axis="y", visible=False)


def tall(names: Sequence[str], row: float = 0.21, rest: float = 0.7) -> float:
    """Return the height in inches of a picture with these names beside its rows."""
    lines = max((wrapped(name).count("\n") + 1 for name in names), default=1)
    return max(row, 0.155 * lines + 0.06 if lines > 1 else row) * (len(names) + 0.5) + rest - row / 2


def panel_name(ax: Axes, method: str, *, columns: int = 1) -> None:
    """Write a method's name above its panel, one of `columns` side by side."""
    ax.set_title(wrapped(method, 76 // columns), loc="left", fontsize=8.5)


# -- lines, bars and legends ------------------------------------------------------------------------------


def curve(ax: Axes, x: Any, y: Any, *, label: str, **line: Any) -> None:
    """Draw a line; a single point, which has no line, is drawn as a dot."""
    is_single = np.isfinite(np.asarray(y, dtype=np.float64)).sum() == 1
    ax.plot(x, y, label=label, marker="o" if is_single else None, **line)


def stack(
    ax: Axes,
    names: Sequence[str],
    parts: Mapping[str, tuple[Floats, int]],
    fills: Mapping[str, str] | None = None,
) -> None:
    """Draw horizontal bars from parts: the widths of each, one per row, and its number for the colour.

    A part in `fills` has the colour given there, and no hatching.
    """
    left = np.zeros(len(names))
    for label, (widths, number) in parts.items():
        own = (fills or {}).get(label)
        fill: Any = {"color": own or colour(number), "hatch": "" if own else hatch(number)}
        ax.barh(range(len(names)), widths, left=left, label=label, **fill, **EDGE)
        left = left + np.nan_to_num(widths)
    row_names(ax, names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlim(left=0.0)


def _entries(ax: Axes) -> dict[str, Any]:
    """Return what the legend of some axes names: only what can be seen in them."""
    pairs = zip(*ax.get_legend_handles_labels(), strict=True)
    return {brief(label, LONG): handle for handle, label in pairs if is_visible(handle)}


def is_visible(handle: Any) -> bool:
    """Return whether a labelled line, bar or box has anything to see."""
    if patches := getattr(handle, "patches", None):
        return any(np.nan_to_num(patch.get_width() * patch.get_height()) for patch in patches)
    line = handle[0] if isinstance(handle, tuple) else handle  # of an error bar
    if not hasattr(line, "get_ydata"):
        return True
    points = np.isfinite(np.asarray(line.get_ydata(), dtype=np.float64)).sum()
    return bool(points > 1 or (points and line.get_marker() not in ("None", None, "")))


def legend(ax: Axes, **where: Any) -> None:
    """Draw a legend of some axes, if they have anything to name."""
    if entries := _entries(ax):
        ax.legend(list(entries.values()), list(entries), **where)


def legend_below(figure: Figure, *axes: Axes, columns: int = 3) -> None:
    """Draw one legend for all these axes below the figure, in room of its own."""
    entries: dict[str, Any] = {}
    for ax in axes:
        entries = entries | {label: handle for label, handle in _entries(ax).items() if label not in entries}
    if not entries:
        return
    fit = int(figure.get_figwidth() / (LETTER * (max(map(len, entries)) + 6)))
    columns = max(1, min(columns, fit, len(entries)))
    figure.set_figheight(figure.get_figheight() + 0.19 * ceil(len(entries) / columns) + 0.1)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


# -- files ------------------------------------------------------------------------------------------------


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write the PNG; returns the same picture as SVG for the page, in the page's own ink."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{name}.png") as part:
        figure.savefig(part, format="png", dpi=DPI, facecolor="white")
    figure.set_layout_engine("none")  # the places are found once
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """Make an SVG file part of a page: ids of its own, no fixed size, ink that follows light and dark."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    role = f'role="img" aria-labelledby="{name}-title"'
    head = rf'<svg viewBox="0 0 \1 \2" style="width:calc({SCALE} * \1pt)" {role}>'
    svg = re.sub(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', head, svg, count=1)
    return svg.replace(INK, "currentColor")

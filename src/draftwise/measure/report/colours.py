"""Colours that colour-blind readers can tell apart, and the scale of speed-ups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, isfinite, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import LogNorm

# Okabe and Ito 2008: visible on white and on black
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c8c8c", "#8f6ac8")
OWN = "#a9adb3"  # the target's own tokens, and rounds without a draft
INK = "#1a1c1f"  # becomes the page's own text colour
DARK, LIGHT = "#000000", "#ffffff"  # text on a coloured cell
SPEEDUPS = "PuOr"  # purple and orange, also for colour-blind readers; nearly white in the middle
LENGTHS = "cividis"  # Nuñez, Anderton and Renslow 2018
LEAST = 1.25  # a scale of speed-ups reaches at least from 1 / LEAST to LEAST
RATIOS = (1 / 20, 0.1, 0.2, 1 / 3, 0.5, 2 / 3, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
CLOSE = (0.8, 0.9, 1.0, 1.1, 1.25)  # of a narrow scale


def colour(number: int) -> str:
    """The colour of the series with this number; -1 is grey."""
    return OWN if number < 0 else COLOURS[number % len(COLOURS)]


def shades(count: int) -> list[str]:
    """Colours of an ordered series, from light to dark."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps[LENGTHS].reversed()
    return [to_hex(scale(0.05 + 0.7 * i / max(count - 1, 1))) for i in range(count)]  # not nearly black


def ratios(values: Iterable[float]) -> LogNorm:
    """A logarithmic scale centred at 1: a ratio and its inverse are equally far from the centre."""
    from matplotlib.colors import LogNorm

    known = [abs(log(value)) for value in values if isfinite(value) and value > 0]
    most = max([log(LEAST), *known])
    return LogNorm(exp(-most), exp(most))


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round ratios between two ends, 1 among them."""
    return [ratio for ratio in (RATIOS if high >= 1.5 else CLOSE) if low * 0.999 <= ratio <= high * 1.001]


def luminance(rgb: Sequence[float]) -> float:
    """The relative luminance of an sRGB colour with parts from 0 to 1 (WCAG 2.2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """The contrast ratio of two colours, 1 to 21; text needs 4.5 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def readable(background: Sequence[float]) -> str:
    """Dark or light text, whichever has the higher contrast."""
    from matplotlib.colors import to_rgb

    return max((DARK, LIGHT), key=lambda text: contrast(to_rgb(text), background))

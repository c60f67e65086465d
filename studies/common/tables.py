"""Tables in Markdown, and ratios of total times with intervals, for the studies that compare methods."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwise.measure.results import DRAWS, FEWEST

Real = NDArray[np.float64]


def row(*cells: object) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def heading(*names: object) -> str:
    """The first two rows of a table."""
    return f"{row(*names)}\n{'|---' * len(names)}|"


def resampled(cases: int) -> Real:
    """How often each case is in each bootstrap sample, shape (samples, cases)."""
    draw = np.random.default_rng(0).multinomial(cases, np.full(cases, 1 / cases), DRAWS)
    return draw.astype(np.float64)


def middle(values: Real) -> tuple[float, float]:
    """The bounds of the middle 95 %."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def ratio(first: Real, second: Real) -> tuple[float, float, float]:
    """Total of the second over that of the first, with its 95 % interval; NaN from fewer than five prompts.

    Prompts and orders are both drawn again, the same for both sides: what was learned in one order is one
    case, however many prompts it saw. Shape (orders, prompts), or (prompts,) where nothing is learned.
    """
    first, second = np.broadcast_arrays(np.atleast_2d(first), np.atleast_2d(second))
    orders, prompts = first.shape
    value = float(second.sum() / first.sum())
    if prompts < FEWEST:
        return value, float("nan"), float("nan")
    draw = np.random.default_rng(0)
    by_prompt = draw.multinomial(prompts, np.full(prompts, 1 / prompts), DRAWS)
    by_order = draw.multinomial(orders, np.full(orders, 1 / orders), DRAWS)
    totals = [((by_order @ side) * by_prompt).sum(1) for side in (first, second)]
    return value, *middle(totals[1] / totals[0])


def verdict(low: float, high: float) -> str:
    """The verdict on an ordering, by the interval of its ratio; none without an interval."""
    if not low <= high:
        return "no verdict"
    return "confirmed" if low > 1.0 else "reversed" if high < 1.0 else "not confirmed"


def cell(value: float, low: float, high: float, places: int = 3) -> str:
    """A ratio and its interval as a table shows them."""
    interval = f" ({low:.{places}f} to {high:.{places}f})" if low <= high else " (too few prompts)"
    return f"{value:.{places}f}{interval}"

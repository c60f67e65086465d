"""What the policies learned: choices of the best arm, regret, overlap of drafter and target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..colours import INK
from ..labels import wrapped
from ..records import Finished, Results, Row
from ..rounds import Floats, Rounds
from ..style import below, curve, look, panels
from .missing import FIXED, ROUNDS, Missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 400  # of a line: more cannot be told apart
MOST = 6
UNITS = {"rounds": "rounds", "seconds": "s"}
WINDOW, FEW = 5, 8  # rounds that a mean is over, and the least number of rounds of a drafter in it


def thin(x: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most `POINTS` evenly spaced points of a line, the last among them."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).astype(int))
    return np.asarray(x)[keep], np.asarray(y)[keep]


def moving(values: Floats, window: int) -> Floats:
    """The mean of the last `window` values at every position; of fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: Floats = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def drafter_of(arm: str) -> str:
    """The drafter in an arm's name: `zoo:code` of `zoo:code:5~svip(0.6)`."""
    return arm.partition("~")[0].rpartition(":")[0] or arm


def adaptive(results: Results, most: int) -> list[str]:
    """The fastest adaptive policies whose rounds were recorded.

    Raises:
        Missing: there are none.
    """
    found = results.adaptive(most)
    if not found:
        raise Missing("no rounds of an adaptive policy", ROUNDS)
    return found


def best_fixed(results: Results) -> dict[str, str]:
    """The arm of the fastest fixed method in each category.

    Raises:
        Missing: fewer than two fixed arms were run.
    """
    best = {
        c: [row for row in results.of(c) if row.kind == "fixed" and row.pulls] for c in results.categories
    }
    if len({next(iter(row.pulls)) for rows in best.values() for row in rows}) < 2:
        raise Missing("fewer than two fixed arms to compare with", FIXED)
    return {category: next(iter(rows[0].pulls)) for category, rows in best.items() if rows}


def hits(rounds: Rounds, best: Mapping[str, str]) -> Floats | None:
    """1 where a round played its category's best fixed arm, else 0; None where the policy had no choice.

    Drafters are compared instead of arms where the policy does not have the fixed arms.
    """
    by = "arm" if set(best.values()) & set(rounds.names["arm"]) else "drafter"
    wanted = {c: arm if by == "arm" else drafter_of(arm) for c, arm in best.items()}
    known = rounds.names[by]
    if len(known) < 2 or not set(wanted.values()) & set(known):
        return None
    codes = [known.index(w) if (w := wanted.get(c)) in known else -1 for c in rounds.names["category"]]
    found: Floats = (getattr(rounds, by) == np.array(codes)[rounds.category]).astype(np.float64)
    return found


def best_choices(results: Results) -> Figure:
    """Share of rounds with the category's best fixed arm: MetaSD (arXiv 2604.05417), Figure 3."""
    methods, best = adaptive(results, MOST), best_fixed(results)
    found = {m: mine for m in methods if (mine := hits(results.rounds[m], best)) is not None}
    if not found:
        raise Missing("no adaptive policy with the drafters of the fixed arms", FIXED)
    figure, (within, over) = panels(2, height=2.6)
    for method, mine in found.items():
        line = look(results.number(method))
        number = results.rounds[method].number
        counts = np.bincount(number)
        enough = np.flatnonzero(counts >= max(3, counts.max() // 4))
        curve(within, enough, np.bincount(number, mine)[enough] / counts[enough], label=method, **line)
        means = moving(mine, max(20, len(mine) // 20))
        curve(over, *thin(np.arange(len(mine)), means), label=method, **line)
    within.locator_params(axis="x", integer=True)
    within.set(xlabel="round within a text", ylabel="share of rounds", ylim=(0, 1.02))
    over.set(xlabel="round of the run", ylim=(0, 1.02), title="best arm, moving mean")
    within.set_title("best arm, mean over texts")
    below(figure, within, over)
    return figure


def regret(results: Results) -> Figure:
    """Rounds and seconds in excess of the best fixed arm's in hindsight, summed over the prompts."""
    rivals, mine = results.kinds("fixed", "plain"), results.kinds("adaptive")[:MOST]
    if not rivals or not mine or not results.finished:
        raise Missing("prompts finished by a policy and by fixed arms", FIXED)
    figure, axes = panels(2, height=2.6)
    for ax, key in zip(axes, ("rounds", "seconds"), strict=True):
        table = _by_prompt(results, [*rivals, *mine], key)
        if table.shape[1] < 2:
            raise Missing("fewer than two prompts that all methods finished", FIXED)
        fixed, chosen = table[: len(rivals)], table[len(rivals) :]
        best = int(np.nansum(fixed, axis=1).argmin())
        for row, line in zip(mine, chosen, strict=True):
            prompts = np.arange(1, len(line) + 1)
            curve(
                ax,
                *thin(prompts, np.cumsum(line - fixed[best])),
                label=row.name,
                **look(results.number(row.name)),
            )
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.locator_params(axis="x", integer=True)
        ax.set(xlabel="prompts decoded", ylabel=f"cumulative regret ({UNITS[key]})")
        ax.set_title(wrapped(f"{key}, against {rivals[best].name}", 40), fontsize=8)
    below(figure, axes[0])
    return figure


def _by_prompt(results: Results, rows: list[Row], key: str) -> Floats:
    """Rounds or seconds of each method, shape (methods, prompts), for the prompts that all have decoded."""
    place = {row.method: i for i, row in enumerate(rows)}
    found: dict[str, dict[str, Finished]] = {}
    for line in (f for f in results.finished if f.method in place and f.batch == results.batch):
        found.setdefault(line.prompt, {})[line.method] = line
    full = [by_method for by_method in found.values() if len(by_method) == len(place)]
    table = np.full((len(rows), len(full)), np.nan)
    for j, by_method in enumerate(full):
        for method, line in by_method.items():
            table[place[method], j] = getattr(line, key)
    return table


def divergence(results: Results) -> Figure:
    """Mean overlap 1 - TV of each drafter by round within a text: MetaSD (arXiv 2604.05417), Figure 6."""
    found: dict[str, list[Any]] = {}
    for rounds in results.rounds.values():
        known = ~np.isnan(rounds.overlap) & (rounds.drafted > 0)
        for code, drafter in enumerate(rounds.names["drafter"]):
            mask = known & (rounds.drafter == code)
            if mask.any():
                found.setdefault(drafter, []).append((rounds.number[mask], rounds.overlap[mask]))
    if not found:
        raise Missing(
            "no overlap of drafter and target was recorded", "a run with `metasd-ucb`, whose reward reads it"
        )
    figure, (ax,) = panels(height=2.5)
    for drafter, parts in sorted(found.items(), key=lambda item: results.drafters.index(item[0])):
        number, overlap = (np.concatenate(column) for column in zip(*parts, strict=True))
        last = len(np.bincount(number))
        counts, sums = (np.convolve(np.bincount(number, w), np.ones(WINDOW))[:last] for w in (None, overlap))
        enough = np.flatnonzero(counts >= FEW)  # a policy tries each drafter once in the same round
        line = look(results.drafters.index(drafter))
        curve(ax, enough, sums[enough] / counts[enough], label=drafter, **line)
    ax.set(xlabel="round within a text", ylabel="overlap (1 \N{MINUS SIGN} TV)", ylim=(0, 1.02))
    below(figure, ax)
    return figure

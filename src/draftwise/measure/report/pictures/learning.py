"""What the policies learned: values of arms, choices of the best arm, regret, overlap of drafter and target.

Sources: TapOut (arXiv 2511.02017), MetaSD (arXiv 2604.05417).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..records import Finished, Floats, Pairs, Results, Rounds, Row
from ..style import INK, curve, legend, legend_below, line_style, panel_name, panels, wrapped
from .picture import FIXED, ROUNDS, Gallery, Missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 400  # of a line: more cannot be told apart
MOST = 6
UNITS = {"rounds": "rounds", "seconds": "s"}
WINDOW, FEW = 5, 8  # rounds that a mean is over, and the least number of rounds of a drafter in it
PANELS = 4
ENOUGH = 5  # rounds; a band leaves out arms with fewer
PICTURES = Gallery("Learning")

Places = NDArray[np.int_]


@dataclass(frozen=True, slots=True)
class Group:
    """One line: the mean value of some arms, weighted by their rounds so far, and the range of the values."""

    name: str
    arms: int
    mean: Floats
    low: Floats
    high: Floats


@PICTURES.add("Estimated value of each drafter")
def values(results: Results) -> Figure:
    """After TapOut, Figure 5: the value that the policy reports, or, where it reports none, the mean accepted
    tokens of its rounds so far. A line is a drafter (the mean of its arms, weighted by their rounds), a band
    the range of its arms with five rounds or more. Policies with a single drafter have one line for each of
    their six most played arms.
    """
    methods = _unlike(results, adaptive(results, 99))[:PANELS]
    figure, axes = panels(len(methods), columns=1, height=2.3)
    for ax, method in zip(axes, methods, strict=True):
        rounds = results.rounds[method]
        grid = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), POINTS)).astype(int))
        for i, group in enumerate(groups(rounds, rounds.values or so_far(rounds), grid)):
            is_drafter = group.name in results.drafters
            number = -1 if group.name == "none" else results.drafters.index(group.name) if is_drafter else i
            _draw(ax, grid, group, number)
        ax.set(ylabel="estimated value" if rounds.values else "mean accepted\n(tokens per round)")
        ax.set_xlabel("round of the run")
        panel_name(ax, method)
        legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)
    return figure


def _draw(ax: Axes, grid: Places, group: Group, number: int) -> None:
    line = line_style(number)
    name = f"{group.name} ({group.arms} arms)" if group.arms > 1 else group.name
    curve(ax, grid, group.mean, label=name, **line)
    if group.arms > 1:
        ax.fill_between(grid, group.low, group.high, color=line["color"], alpha=0.15, linewidth=0)


def groups(rounds: Rounds, lines: Pairs, grid: Places) -> list[Group]:
    """The lines of a panel: one per drafter, or, with a single drafter, its `MOST` most played arms."""
    several = len({drafter_of(arm) for arm in lines} - {"none"}) > 1
    if several:
        members: dict[str, list[str]] = {}
        for arm in lines:
            members.setdefault(drafter_of(arm), []).append(arm)
    else:
        kept = _most_played(rounds, list(lines))
        members = {name: [arm] for name, arm in zip(short(kept), kept, strict=True)}
    lines_shown = (group(name, arms, rounds, lines, grid) for name, arms in members.items())
    return [one for one in lines_shown if np.isfinite(one.mean).any()]


def group(name: str, arms: Sequence[str], rounds: Rounds, lines: Pairs, grid: Places) -> Group:
    """The mean and the range of some arms' values at the rounds in `grid`; NaN before any was played."""
    seen = np.array([_at(lines[arm], grid) for arm in arms])
    played = np.array([np.cumsum(rounds.where("arm", arm))[grid] for arm in arms])
    is_known = np.isfinite(seen)
    weights = np.where(is_known, np.maximum(played, 1e-9), 0.0)
    totals = weights.sum(axis=0)
    sums = (weights * np.where(is_known, seen, 0.0)).sum(axis=0)
    nothing = totals == 0
    mean = np.where(nothing, np.nan, sums / np.where(nothing, 1.0, totals))
    often = is_known & (played >= ENOUGH)
    low = np.minimum(mean, np.where(often, seen, np.inf).min(axis=0))
    high = np.maximum(mean, np.where(often, seen, -np.inf).max(axis=0))
    return Group(name, len(arms), mean, low, high)


def _at(line: tuple[Floats, Floats], grid: Places) -> Floats:
    """The last value of a line at or before each round in `grid`; NaN before the first."""
    at, value = line
    place = np.searchsorted(at, grid, side="right") - 1
    values: Floats = np.where(place < 0, np.nan, np.append(value, np.nan)[place])
    return values


def short(arms: Sequence[str]) -> list[str]:
    """Arms' names without what all have before their stop rule: `svip(0.6)` of `zoo:code:5~svip(0.6)`."""
    heads = {arm.partition("~")[0] for arm in arms}
    return [arm.partition("~")[2] or arm for arm in arms] if len(heads) == 1 else list(arms)


def _most_played(rounds: Rounds, arms: Sequence[str]) -> list[str]:
    """The `MOST` most played arms, in the order in which they are given."""
    played = dict(zip(rounds.names["arm"], np.bincount(rounds.arm).tolist(), strict=True))
    kept = sorted(arms, key=lambda arm: -played.get(arm, 0))[:MOST]
    return [arm for arm in arms if arm in kept]


def _unlike(results: Results, methods: Sequence[str]) -> list[str]:
    """The methods with the fastest of each kind of arms first: drafters, lengths, stop rules, products."""
    kinds: dict[tuple[bool, bool, bool], str] = {}
    for method in methods:
        arms = [arm for arm in results.rounds[method].names["arm"] if arm != "none"]
        heads = [arm.partition("~")[0] for arm in arms]
        lengths = {head.rpartition(":")[2] for head in heads}
        ruled = any("~" in arm for arm in arms)
        kinds.setdefault((len(set(map(drafter_of, arms))) > 1, len(lengths) > 1, ruled), method)
    first = set(kinds.values())
    return sorted(methods, key=lambda method: method not in first)


def so_far(rounds: Rounds) -> Pairs:
    """The mean accepted tokens of each arm's rounds up to each of them; no draft has none."""
    means_by_arm = {}
    for code, arm in enumerate(rounds.names["arm"]):
        if arm == "none":
            continue
        at = np.flatnonzero(rounds.arm == code)
        means = np.cumsum(rounds.accepted[at]) / np.arange(1, len(at) + 1)
        means_by_arm[arm] = (at.astype(np.float64), means)
    return means_by_arm


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
    methods = results.adaptive(most)
    if not methods:
        raise Missing("no rounds of an adaptive policy", ROUNDS)
    return methods


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
    names = rounds.names[by]
    if len(names) < 2 or not set(wanted.values()) & set(names):
        return None
    codes = [names.index(w) if (w := wanted.get(c)) in names else -1 for c in rounds.names["category"]]
    shares: Floats = (getattr(rounds, by) == np.array(codes)[rounds.category]).astype(np.float64)
    return shares


@PICTURES.add("Choices of the best arm")
def best_choices(results: Results) -> Figure:
    """After MetaSD, Figure 3: the share of rounds that played the best of this run's fixed arms in the
    prompt's category, or its drafter where the policy does not have that arm.
    """
    methods, best = adaptive(results, MOST), best_fixed(results)
    by_method = {m: shares for m in methods if (shares := hits(results.rounds[m], best)) is not None}
    if not by_method:
        raise Missing("no adaptive policy with the drafters of the fixed arms", FIXED)
    figure, (within, over) = panels(2, height=2.6)
    for method, shares in by_method.items():
        line = line_style(results.number(method))
        number = results.rounds[method].round
        counts = np.bincount(number)
        enough = np.flatnonzero(counts >= max(3, counts.max() // 4))
        curve(within, enough, np.bincount(number, shares)[enough] / counts[enough], label=method, **line)
        means = moving(shares, max(20, len(shares) // 20))
        curve(over, *thin(np.arange(len(shares)), means), label=method, **line)
    within.locator_params(axis="x", integer=True)
    within.set(xlabel="round within a text", ylabel="share of rounds", ylim=(0, 1.02))
    over.set(xlabel="round of the run", ylim=(0, 1.02), title="best arm, moving mean")
    within.set_title("best arm, mean over texts")
    legend_below(figure, within, over)
    return figure


@PICTURES.add("Cumulative regret")
def regret(results: Results) -> Figure:
    """Rounds and seconds in excess of the best of this run's fixed arms over all prompts, which is named
    above each panel. Below zero is better than all of these; an arm that was not run may be better still.
    """
    rivals, chosen_rows = results.kinds("fixed", "plain"), results.kinds("adaptive")[:MOST]
    if not rivals or not chosen_rows or not results.finished:
        raise Missing("prompts finished by a policy and by fixed arms", FIXED)
    figure, axes = panels(2, height=2.6)
    for ax, key in zip(axes, ("rounds", "seconds"), strict=True):
        table = _by_prompt(results, [*rivals, *chosen_rows], key)
        if table.shape[1] < 2:
            raise Missing("fewer than two prompts that all methods finished", FIXED)
        fixed, chosen = table[: len(rivals)], table[len(rivals) :]
        best = int(np.nansum(fixed, axis=1).argmin())
        for row, line in zip(chosen_rows, chosen, strict=True):
            prompts = np.arange(1, len(line) + 1)
            curve(
                ax,
                *thin(prompts, np.cumsum(line - fixed[best])),
                label=row.name,
                **line_style(results.number(row.name)),
            )
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.locator_params(axis="x", integer=True)
        ax.set(xlabel="prompts decoded", ylabel=f"cumulative regret ({UNITS[key]})")
        ax.set_title(wrapped(f"{key}, against {rivals[best].name}", 40), fontsize=8)
    legend_below(figure, axes[0])
    return figure


def _by_prompt(results: Results, rows: list[Row], key: str) -> Floats:
    """Rounds or seconds of each method, shape (methods, prompts), for the prompts that all have decoded."""
    place = {row.method: i for i, row in enumerate(rows)}
    by_prompt: dict[str, dict[str, Finished]] = {}
    for line in (f for f in results.finished if f.method in place and f.batch == results.batch):
        by_prompt.setdefault(line.prompt, {})[line.method] = line
    full = [by_method for by_method in by_prompt.values() if len(by_method) == len(place)]
    table = np.full((len(rows), len(full)), np.nan)
    for j, by_method in enumerate(full):
        for method, line in by_method.items():
            table[place[method], j] = getattr(line, key)
    return table


@PICTURES.add("Overlap of drafter and target over rounds")
def divergence(results: Results) -> Figure:
    """After MetaSD, Figure 6: 1 \N{MINUS SIGN} TV, the overlap of the distributions of drafter and target,
    averaged over the draft.
    """
    by_drafter: dict[str, list[Any]] = {}
    for rounds in results.rounds.values():
        is_read = ~np.isnan(rounds.overlap) & (rounds.drafted > 0)
        for code, drafter in enumerate(rounds.names["drafter"]):
            mask = is_read & (rounds.drafter == code)
            if mask.any():
                by_drafter.setdefault(drafter, []).append((rounds.round[mask], rounds.overlap[mask]))
    if not by_drafter:
        raise Missing(
            "no overlap of drafter and target was recorded", "a run with `metasd-ucb`, whose reward reads it"
        )
    figure, (ax,) = panels(height=2.5)
    for drafter, parts in sorted(by_drafter.items(), key=lambda item: results.drafters.index(item[0])):
        number, overlap = (np.concatenate(column) for column in zip(*parts, strict=True))
        last = len(np.bincount(number))
        counts, sums = (np.convolve(np.bincount(number, w), np.ones(WINDOW))[:last] for w in (None, overlap))
        enough = np.flatnonzero(counts >= FEW)  # a policy tries each drafter once in the same round
        line = line_style(results.drafters.index(drafter))
        curve(ax, enough, sums[enough] / counts[enough], label=drafter, **line)
    ax.set(xlabel="round within a text", ylabel="overlap (1 \N{MINUS SIGN} TV)", ylim=(0, 1.02))
    legend_below(figure, ax)
    return figure

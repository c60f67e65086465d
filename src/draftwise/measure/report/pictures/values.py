"""The value of each drafter or arm over the rounds, as a policy estimates it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import style
from ..records import Results
from ..rounds import Floats, Rounds
from ..style import legend, look, panels
from .learning import POINTS, adaptive, drafter_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 4
MOST = 6  # arms whose lines can be told apart in one panel
FEW = 5  # rounds; a band leaves out arms with fewer

Places = NDArray[np.int_]
Lines = Mapping[str, tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True)
class Group:
    """One line: the mean value of some arms, weighted by their rounds so far, and the range of the values."""

    name: str
    arms: int
    mean: Floats
    low: Floats
    high: Floats


def values(results: Results) -> Figure:
    """The value of each drafter over the rounds, or of each arm of a policy with one: TapOut
    (arXiv 2511.02017), Figure 5.

    As the policy reports it where the rounds carry `values`, else the mean accepted tokens so far. A band is
    the range of a drafter's arms.
    """
    methods = _unlike(results, adaptive(results, 99))[:PANELS]
    figure, axes = panels(len(methods), columns=1, height=2.3)
    for ax, method in zip(axes, methods, strict=True):
        rounds = results.rounds[method]
        grid = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), POINTS)).astype(int))
        for i, group in enumerate(groups(rounds, rounds.values or so_far(rounds), grid)):
            known = group.name in results.drafters
            number = -1 if group.name == "none" else results.drafters.index(group.name) if known else i
            _draw(ax, grid, group, number)
        ax.set(ylabel="estimated value" if rounds.values else "mean accepted\n(tokens per round)")
        ax.set_xlabel("round of the run")
        style.name(ax, method)
        legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)
    return figure


def _draw(ax: Axes, grid: Places, group: Group, number: int) -> None:
    line = look(number)
    name = f"{group.name} ({group.arms} arms)" if group.arms > 1 else group.name
    style.curve(ax, grid, group.mean, label=name, **line)
    if group.arms > 1:
        ax.fill_between(grid, group.low, group.high, color=line["color"], alpha=0.15, linewidth=0)


def groups(rounds: Rounds, lines: Lines, grid: Places) -> list[Group]:
    """The lines of a panel: one per drafter, or, with a single drafter, its `MOST` most played arms."""
    several = len({drafter_of(arm) for arm in lines} - {"none"}) > 1
    if several:
        members: dict[str, list[str]] = {}
        for arm in lines:
            members.setdefault(drafter_of(arm), []).append(arm)
    else:
        kept = _most_played(rounds, lines)
        members = {name: [arm] for name, arm in zip(short(kept), kept, strict=True)}
    found = (group(name, arms, rounds, lines, grid) for name, arms in members.items())
    return [one for one in found if np.isfinite(one.mean).any()]


def group(name: str, arms: Sequence[str], rounds: Rounds, lines: Lines, grid: Places) -> Group:
    """The mean and the range of some arms' values at the rounds in `grid`; NaN before any was played."""
    seen = np.array([_at(lines[arm], grid) for arm in arms])
    played = np.array([np.cumsum(rounds.where("arm", arm))[grid] for arm in arms])
    known = np.isfinite(seen)
    weights = np.where(known, np.maximum(played, 1e-9), 0.0)
    totals = weights.sum(axis=0)
    sums = (weights * np.where(known, seen, 0.0)).sum(axis=0)
    nothing = totals == 0
    mean = np.where(nothing, np.nan, sums / np.where(nothing, 1.0, totals))
    often = known & (played >= FEW)
    low = np.minimum(mean, np.where(often, seen, np.inf).min(axis=0))
    high = np.maximum(mean, np.where(often, seen, -np.inf).max(axis=0))
    return Group(name, len(arms), mean, low, high)


def _at(line: tuple[Floats, Floats], grid: Places) -> Floats:
    """The last value of a line at or before each round in `grid`; NaN before the first."""
    at, value = line
    place = np.searchsorted(at, grid, side="right") - 1
    found: Floats = np.where(place < 0, np.nan, np.append(value, np.nan)[place])
    return found


def short(arms: Sequence[str]) -> list[str]:
    """Arms' names without what all have before their stop rule: `svip(0.6)` of `zoo:code:5~svip(0.6)`."""
    heads = {arm.partition("~")[0] for arm in arms}
    return [arm.partition("~")[2] or arm for arm in arms] if len(heads) == 1 else list(arms)


def _most_played(rounds: Rounds, arms: Iterable[str]) -> list[str]:
    """The `MOST` most played arms, in the order in which they are given."""
    names, counts = rounds.names["arm"], np.bincount(rounds.arm)
    played = {name: int(counts[code]) for code, name in enumerate(names)}
    given = list(arms)
    kept = sorted(given, key=lambda arm: -played.get(arm, 0))[:MOST]
    return [arm for arm in given if arm in kept]


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


def so_far(rounds: Rounds) -> Lines:
    """The mean accepted tokens of each arm's rounds up to each of them; no draft has none."""
    found = {}
    for code, arm in enumerate(rounds.names["arm"]):
        if arm == "none":
            continue
        at = np.flatnonzero(rounds.arm == code)
        means = np.cumsum(rounds.accepted[at]) / np.arange(1, len(at) + 1)
        found[arm] = (at.astype(np.float64), means)
    return found

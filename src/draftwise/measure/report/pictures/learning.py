"""What the policies learnt: values of arms, choices of the best one, regret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import style
from ..records import Finished, Results, Row
from ..rounds import Floats, Rounds
from ..style import INK, below, look, panels
from .missing import FIXED, ROUNDS, Missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 400  # of a line: more cannot be told apart
MOST = 6
WINDOW, FEW = 5, 8  # rounds that a mean is over, and how many of a drafter's it must hold
ARMS = 12  # whose lines are told apart beside one panel


def thin(x: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most `POINTS` points of a line, evenly chosen, the last among them."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).astype(int))
    return np.asarray(x)[keep], np.asarray(y)[keep]


def moving(values: Floats, window: int) -> Floats:
    """The mean of the last `window` values at every place; fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: Floats = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def drafter_of(arm: str) -> str:
    """The drafter in an arm's name: `zoo:code` of `zoo:code:5~svip(0.6)`."""
    return arm.partition("~")[0].rpartition(":")[0] or arm


def short(arms: Sequence[str]) -> list[str]:
    """Arms' names without what all have before their stop rule: `svip(0.6)` of `zoo:code:5~svip(0.6)`."""
    heads = {arm.partition("~")[0] for arm in arms}
    return [arm.partition("~")[2] or arm for arm in arms] if len(heads) == 1 else list(arms)


def _adaptive(results: Results, most: int) -> list[str]:
    found = results.adaptive(most)
    if not found:
        raise Missing("no rounds of a policy that chooses among arms", ROUNDS)
    return found


def values(results: Results) -> Figure:
    """The value of each arm over the rounds: TapOut (arXiv 2511.02017), Figure 5.

    As the policy reports it where the rounds carry `values`, else the mean accepted tokens of the arm's own
    rounds so far.
    """
    methods = _unlike(results, _adaptive(results, 99))[:4]
    figure, axes = panels(len(methods), columns=1, height=2.5)
    for ax, method in zip(axes, methods, strict=True):
        rounds = results.rounds[method]
        found = _most_played(rounds, rounds.values or so_far(rounds))
        names = short([arm for arm, _ in found])
        for i, (name, (arm, (at, value))) in enumerate(zip(names, found, strict=True)):
            ax.plot(*thin(at, value), label=name, **look(_place(arm, i, rounds, results)))
        ax.set(ylabel="value" if rounds.values else "mean accepted so far", xlabel="round")
        style.name(ax, method)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5)
    return figure


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


def _most_played(
    rounds: Rounds, found: Mapping[str, tuple[Floats, Floats]]
) -> list[tuple[str, tuple[Floats, Floats]]]:
    """The lines of the arms that were played most, in the arms' own order."""
    names, counts = rounds.names["arm"], np.bincount(rounds.arm)
    played = {name: int(counts[code]) for code, name in enumerate(names)}
    kept = sorted(found, key=lambda arm: -played.get(arm, 0))[:ARMS]
    return [(arm, line) for arm, line in found.items() if arm in kept]


def _place(arm: str, number: int, rounds: Rounds, results: Results) -> int:
    """The number of an arm's colour: its drafter's, if every arm has a drafter of its own."""
    who = drafter_of(arm)
    alone = len(rounds.names["drafter"]) == len(rounds.names["arm"])
    return results.drafters.index(who) if alone and who in results.drafters else number


def so_far(rounds: Rounds) -> Mapping[str, tuple[Floats, Floats]]:
    """The mean accepted tokens of each arm's own rounds up to each of them."""
    found = {}
    for code, arm in enumerate(rounds.names["arm"]):
        at = np.flatnonzero(rounds.arm == code)
        means = np.cumsum(rounds.accepted[at]) / np.arange(1, len(at) + 1)
        found[arm] = (at.astype(np.float64), means)
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
    """1 where a round played its category's best fixed arm, by drafter where the arms are others; None
    where there was no choice between them."""
    by = "arm" if set(best.values()) & set(rounds.names["arm"]) else "drafter"
    wanted = {c: arm if by == "arm" else drafter_of(arm) for c, arm in best.items()}
    known = rounds.names[by]
    if len(known) < 2 or not set(wanted.values()) & set(known):
        return None
    codes = [known.index(w) if (w := wanted.get(c)) in known else -1 for c in rounds.names["category"]]
    found: Floats = (getattr(rounds, by) == np.array(codes)[rounds.category]).astype(np.float64)
    return found


def best_choices(results: Results) -> Figure:
    """How often the category's best fixed arm was chosen: MetaSD (arXiv 2604.05417), Figure 3."""
    methods, best = _adaptive(results, MOST), best_fixed(results)
    found = {m: mine for m in methods if (mine := hits(results.rounds[m], best)) is not None}
    if not found:
        raise Missing("no policy that chooses among the drafters of the fixed arms", FIXED)
    figure, (within, over) = panels(2, height=2.6)
    for i, (method, mine) in enumerate(found.items()):
        number = results.rounds[method].number
        counts = np.bincount(number)
        enough = np.flatnonzero(counts >= max(3, counts.max() // 4))
        within.plot(enough, np.bincount(number, mine)[enough] / counts[enough], label=method, **look(i))
        over.plot(*thin(np.arange(len(mine)), moving(mine, max(20, len(mine) // 20))), **look(i))
    within.set(xlabel="round within a text", ylabel="share of the best arm", ylim=(0, 1.02))
    over.set(xlabel="round of the whole run", ylim=(0, 1.02), title="moving mean")
    within.set_title("mean over texts")
    below(figure, within)
    return figure


def regret(results: Results) -> Figure:
    """Rounds and seconds more than the best fixed arm's in hindsight, added up over the prompts."""
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
        for i, (row, line) in enumerate(zip(mine, chosen, strict=True)):
            prompts = np.arange(1, len(line) + 1)
            ax.plot(*thin(prompts, np.cumsum(line - fixed[best])), label=row.name, **look(i))
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.set(xlabel="prompts", ylabel=f"{key} more")
        ax.set_title(f"{key}, against {rivals[best].name}", fontsize=8)
    below(figure, axes[0])
    return figure


def _by_prompt(results: Results, rows: list[Row], key: str) -> Floats:
    """Rounds or seconds of each method, shape (methods, prompts), for the prompts that all have finished."""
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
    """Mean 1 - TV of each drafter by round within a text: MetaSD (arXiv 2604.05417), Figure 6."""
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
        ax.plot(enough, sums[enough] / counts[enough], label=drafter, **line)
    ax.set(xlabel="round within a text", ylabel="1 - TV, mean over the draft", ylim=(0, 1.02))
    below(figure, ax)
    return figure

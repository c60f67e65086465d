"""What the policies learned: values of arms, choices of the best arm, regret, overlap of drafter and target.

Sources: TapOut (arXiv 2511.02017), MetaSD (arXiv 2604.05417).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..records import Floats, Pairs, Results, Rounds, Row
from ..style import (
    INK,
    colour,
    curve,
    legend,
    legend_below,
    line_style,
    panel_name,
    panels,
    stack,
    tall,
    wrapped,
)
from .picture import FIXED, ROUNDS, Gallery, need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 400  # of a line: more cannot be told apart
MOST = 6
UNITS = {"rounds": "rounds", "seconds": "s"}
SIMULATED_UNITS = {"rounds": "rounds", "seconds": "s, one target pass = 1 s"}
WINDOW, FEW = 5, 8  # rounds that a mean is over, and the least number of rounds of a drafter in it
PANELS = 4
PICTURES = Gallery("Learning")
SIMULATED = Gallery("Simulation")  # of `simulation.json`


@PICTURES.add("Estimated value of each arm")
def values(results: Results) -> Figure:
    """After TapOut, Figure 5: the value that the policy reports, or, where it reports none, the mean accepted
    tokens of its rounds so far. Lines are the six most played arms.
    """
    methods = adaptive(results, PANELS)
    figure, axes = panels(len(methods), columns=1, height=2.3)
    for ax, method in zip(axes, methods, strict=True):
        rounds = results.rounds[method]
        lines = rounds.values or so_far(rounds)
        for i, arm in enumerate(most_played(rounds, list(lines))):
            curve(ax, *thin(*lines[arm]), label=arm, **line_style(i))
        ax.set(ylabel="estimated value" if rounds.values else "mean accepted\n(tokens per round)")
        ax.set_xlabel("round of the run")
        panel_name(ax, method)
        legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)
    return figure


def most_played(rounds: Rounds, arms: Sequence[str]) -> list[str]:
    """The `MOST` most played arms, in the order in which they are given."""
    pulls = dict(zip(rounds.names["arm"], np.bincount(rounds.arm).tolist(), strict=True))
    first = sorted(arms, key=lambda arm: -pulls.get(arm, 0))[:MOST]
    return [arm for arm in arms if arm in first]


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
    """The fastest adaptive policies whose rounds were recorded."""
    methods = results.adaptive(most)
    need(methods, "no rounds of an adaptive policy", ROUNDS)
    return methods


def best_fixed(results: Results) -> dict[str, str]:
    """The arm of the fastest fixed method in each category."""
    best = {
        c: [row for row in results.of(c) if row.kind == "fixed" and row.pulls] for c in results.categories
    }
    need(
        len({next(iter(row.pulls)) for rows in best.values() for row in rows}) > 1,
        "fewer than two fixed arms to compare with",
        FIXED,
    )
    return {category: next(iter(rows[0].pulls)) for category, rows in best.items() if rows}


def hits(rounds: Rounds, best: Mapping[str, str]) -> Floats | None:
    """1 where a round played its category's best fixed arm, else 0; None where the policy had no choice.

    Drafters are compared instead of arms where the policy does not have the fixed arms.
    """
    by = "arm" if set(best.values()) & set(rounds.names["arm"]) else "drafter"
    targets = {c: arm if by == "arm" else drafter_of(arm) for c, arm in best.items()}
    names = rounds.names[by]
    if len(names) < 2 or not set(targets.values()) & set(names):
        return None
    codes = [names.index(w) if (w := targets.get(c)) in names else -1 for c in rounds.names["category"]]
    shares: Floats = (getattr(rounds, by) == np.array(codes)[rounds.category]).astype(np.float64)
    return shares


@PICTURES.add("Choices of the best arm")
def best_choices(results: Results) -> Figure:
    """After MetaSD, Figure 3: the share of rounds that played the best of this run's fixed arms in the
    prompt's category, or its drafter where the policy does not have that arm.
    """
    methods, best = adaptive(results, MOST), best_fixed(results)
    by_method = {m: shares for m in methods if (shares := hits(results.rounds[m], best)) is not None}
    need(by_method, "no adaptive policy with the drafters of the fixed arms", FIXED)
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
    need(rivals and chosen_rows and results.finished, "prompts finished by a policy and by fixed arms", FIXED)
    figure, axes = panels(2, height=2.6)
    for ax, key in zip(axes, ("rounds", "seconds"), strict=True):
        table = _by_prompt(results, [*rivals, *chosen_rows], key)
        need(table.shape[1] > 1, "fewer than two prompts that all methods finished", FIXED)
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
    methods = [row.method for row in rows]
    by_prompt: dict[str, dict[str, float]] = {}
    for line in results.finished:
        if line.method in methods and line.batch == results.batch:
            by_prompt.setdefault(line.prompt, {})[line.method] = getattr(line, key)
    full = [numbers for numbers in by_prompt.values() if len(numbers) == len(methods)]
    return np.array([[numbers[method] for numbers in full] for method in methods], np.float64)


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
    need(
        by_drafter,
        "no overlap of drafter and target was recorded",
        "a run with `metasd-ucb`, whose reward reads it",
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


# -- of the simulator ------------------------------------------------------------------------------------


@SIMULATED.add("Regret")
def simulated_regret(results: Results) -> Figure:
    """Rounds and time in excess of the best arm's. Lines are means over seeds, bands one standard error."""
    marks = np.array(results.simulation["marks"])
    figure, axes = panels(2, height=2.8)
    for ax, key in zip(axes, ("rounds", "seconds"), strict=True):
        for i, policy in enumerate(results.simulation["policies"]):
            mean, error = (np.array(policy[f"{key}_regret{which}"], float) for which in ("", "_error"))
            curve(ax, marks, mean, label=policy["policy"], **line_style(i))
            ax.fill_between(marks, mean - error, mean + error, color=colour(i), alpha=0.15, linewidth=0)
        ax.axhline(0.0, color=INK, linewidth=0.8)
        ax.set(xlabel="tokens generated", ylabel=f"regret ({SIMULATED_UNITS[key]})")
    legend_below(figure, *axes)
    return figure


@SIMULATED.add("Choices of the best arm")
def simulated_best(results: Results) -> Figure:
    """Mean over seeds, between one mark and the next."""
    marks = results.simulation["marks"]
    figure, (ax,) = panels(height=2.6)
    for i, policy in enumerate(results.simulation["policies"]):
        share = np.array(policy["best_share"], float)
        curve(ax, marks, share, label=policy["policy"], **line_style(i))
    ax.set(xlabel="tokens generated", ylabel="share of rounds with the best arm", ylim=(0, 1.02))
    legend_below(figure, ax)
    return figure


@SIMULATED.add("Arms by policy")
def simulated_pulls(results: Results) -> Figure:
    """The share of rounds of each arm, over all seeds."""
    policies, arms = results.simulation["policies"], results.simulation["arms"]
    shares = np.array([policy["pulls"] for policy in policies], dtype=np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    names = [policy["policy"] for policy in policies]
    figure, (ax,) = panels(height=tall(names, 0.24, 0.6))
    stack(ax, names, {arm["name"]: (shares[:, i], i) for i, arm in enumerate(arms)})
    ax.set(xlabel="share of rounds", xlim=(0, 1))
    legend_below(figure, ax, columns=4)
    return figure

"""Which drafter drafted, how many tokens, and how many the oracle would have drafted.

Sources: DISCO (arXiv 2405.04304), TapOut (arXiv 2511.02017).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..records import Floats, Results, Rounds
from ..style import (
    DASHES,
    INK,
    colour,
    curve,
    hatch,
    legend,
    legend_below,
    panel_name,
    panels,
    row_names,
    shades,
    stack,
)
from .picture import ORACLE, ROUNDS, Gallery, need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = Gallery("Drafting")


@PICTURES.add("Drafters by category")
def drafters(results: Results) -> Figure:
    """The share of rounds of each drafter. `none` is a round without a draft."""
    several = [m for m in results.adaptive(99) if len(results.rounds[m].names["drafter"]) > 1]
    need(several, "no rounds of a policy with several drafters", ROUNDS)
    return _shares(results, several[:4], "drafter", lambda drafter: drafter, results.drafters)


@PICTURES.add("Draft lengths and stop rules by category")
def arms(results: Results) -> Figure:
    """The share of rounds of each draft length or stop rule. `none` is a round without a draft."""
    several = [m for m in results.adaptive(99) if len(set(map(manner, results.rounds[m].names["arm"]))) > 1]
    need(several, "no rounds of a policy over lengths or stop rules", ROUNDS)
    return _shares(results, several[:4], "arm", manner, [])


def manner(arm: str) -> str:
    """The stop rule of an arm, else its draft length, whichever drafter it has."""
    rule = arm.partition("~")[2]
    return rule or ("none" if arm == "none" else f"length {arm.rpartition(':')[2]}")


def _shares(
    results: Results, methods: list[str], key: str, label: Callable[[str], str], order: list[str]
) -> Figure:
    """One panel per method: shares of `label(key)`; colours follow `order`, lengths have ordered shades."""
    categories = results.categories or [""]
    tables = [shares(results.rounds[m], key, label, categories) for m in methods]
    others = {name for table in tables for name in table if name not in ("none", *order)}
    labels = [*order, *sorted(others, key=_by_number)]
    numbers = {name: i for i, name in enumerate(labels)} | {"none": -1}
    ordered = [name for name in labels if name.startswith("length ")]
    fills = dict(zip(ordered, shades(len(ordered)), strict=True))
    nothing = np.zeros(len(categories))
    across = 2 if len(methods) > 1 else 1
    figure, axes = panels(len(methods), columns=across, height=0.2 * len(categories) + 1.0)
    for ax, method, table in zip(axes, methods, tables, strict=True):
        present = [n for n in numbers if any(n in other for other in tables)]
        stack(ax, categories, {n: (table.get(n, nothing), numbers[n]) for n in present}, fills)
        ax.set(xlim=(0, 1), xlabel="share of rounds")
        panel_name(ax, method, columns=across)
    legend_below(figure, *axes, columns=4)
    return figure


def _by_number(label: str) -> tuple[int, str]:
    """`length 2` before `length 10`, and rules after all lengths."""
    number = label.removeprefix("length ")
    return (int(number), "") if number.isdigit() else (1 << 30, label)


def shares(
    rounds: Rounds, key: str, label: Callable[[str], str], categories: Sequence[str]
) -> dict[str, Floats]:
    """The share of each label in the rounds of each category; 0 where there are no rounds."""
    totals = [rounds.where("category", category) for category in categories]
    table: dict[str, Floats] = {}
    for name in rounds.names[key]:
        mask = rounds.where(key, name)
        share = np.array([(mask & total).sum() / max(total.sum(), 1) for total in totals])
        table[label(name)] = table.get(label(name), 0.0) + share
    return table


@PICTURES.add("Draft length along a text")
def lengths(results: Results) -> Figure:
    """Tokens drafted in each round, and those of the least time (DISCO's Figure 2 has instead an oracle that
    drafts exactly what will be accepted).
    """
    need(results.oracle, "the oracle's draft lengths", ORACLE)
    rows = [*results.kinds("adaptive"), *(row for row in results.kinds("fixed") if "~" in "".join(row.pulls))]
    played = {row.method: results.rounds[row.method] for row in rows if row.method in results.rounds}
    varied = {method: rounds for method, rounds in played.items() if len(np.unique(rounds.drafted)) > 1}
    # Last those with one length in all arms, whose drafts vary only where drafters stop.
    manners = {m: set(map(manner, rounds.names["arm"])) - {"none"} for m, rounds in varied.items()}
    methods = sorted(varied, key=lambda method: len(manners[method]) < 2)[:3]
    shared = [p for p in results.oracle if all(p in results.rounds[m].names["prompt"] for m in methods)]
    need(
        methods and shared, "rounds of a policy with varying draft lengths, on a prompt of the oracle", ROUNDS
    )
    prompt = max(shared, key=lambda p: len(results.oracle[p]))
    figure, axes = panels(len(methods), columns=1, height=1.7)
    best = results.oracle[prompt]
    for ax, method in zip(axes, methods, strict=True):
        rounds = results.rounds[method]
        mask = rounds.where("prompt", prompt)
        starts = np.concatenate([[0], np.cumsum(rounds.tokens[mask])[:-1]])
        at, drafted = [t for t, _, _ in best], [n for _, _, n in best]
        curve(ax, at, drafted, label="oracle", drawstyle="steps-post", color=INK, linewidth=1.0)
        curve(
            ax,
            starts,
            rounds.drafted[mask],
            label=method,
            drawstyle="steps-post",
            color=colour(results.number(method)),
            linestyle="--",
        )
        ax.set(ylabel="draft length (tokens)")
        legend(ax, loc="lower left", bbox_to_anchor=(0.0, 0.98), ncols=2)
    top = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(0, top)
    axes[-1].set_xlabel(f"position in the text (tokens), prompt {prompt}")
    return figure


@PICTURES.add("Draft lengths of the oracle")
def oracle_lengths(results: Results) -> Figure:
    """The share of the rounds of the least time with each draft length (DISCO's Figure 4: see `lengths`)."""
    counts = Counter(n for path in results.oracle.values() for _, _, n in path)
    need(counts, "the oracle's draft lengths", ORACLE)
    figure, (ax,) = panels(height=2.6)
    total, longest = sum(counts.values()), max(counts)
    ax.bar(range(longest + 1), [counts[n] / total for n in range(longest + 1)], color=colour(0))
    mean = sum(n * count for n, count in counts.items()) / total
    ax.axvline(mean, color=INK, linestyle="--", linewidth=1.0, label=f"mean {mean:.2f}")
    ax.set(xlabel="draft length of the oracle (tokens)", ylabel="share of its rounds")
    ax.locator_params(axis="x", integer=True)
    legend(ax)
    return figure


@PICTURES.add("Draft length by reward")
def rewards(results: Results) -> Figure:
    """After TapOut, Figure 3."""
    groups: dict[str, dict[str, str]] = {}
    for method in results.rounds:
        base, reward = without_reward(method)
        groups.setdefault(base, {})[reward] = method
    groups = {base: by_reward for base, by_reward in groups.items() if len(by_reward) > 1}
    need(
        groups,
        "one policy with several rewards",
        "a run with, say, `tapout-seq-ucb1` and `tapout-seq-ucb1?reward=simple`",
    )
    first = list(groups.items())[:4]
    figure, axes = panels(len(first), columns=2 if len(first) > 1 else 1, height=2.5)
    for ax, (base, by_reward) in zip(axes, first, strict=True):
        for i, (reward, method) in enumerate(by_reward.items()):
            drafted = results.rounds[method].drafted
            share = np.bincount(drafted) / len(drafted)
            line = {"color": colour(i), "linestyle": DASHES[i % len(DASHES)], "drawstyle": "steps-mid"}
            curve(ax, range(len(share)), share, label=f"{reward}, mean {drafted.mean():.2f}", **line)
        ax.set(xlabel="tokens drafted per round", ylabel="share of rounds")
        ax.set_ylim(bottom=0.0)
        ax.locator_params(axis="x", integer=True)
        panel_name(ax, base, columns=min(len(first), 2))
        legend(ax)
    return figure


def without_reward(method: str) -> tuple[str, str]:
    """A method's name without its reward, and the reward, or `default reward`."""
    name, _, query = method.partition("?")
    options = [option for option in query.split("&") if option]
    named = [option.partition("=")[2] for option in options if option.startswith("reward=")]
    others = [option for option in options if not option.startswith("reward=")]
    return name + ("?" + "&".join(others) if others else ""), named[0] if named else "default reward"


@PICTURES.add("Entropy of accepted and rejected tokens")
def entropy(results: Results) -> Figure:
    """Entropy by category (TapOut's Figure 2 has it by position in the draft). Boxes are quartiles; whiskers
    reach to the last value within 1.5 times the interquartile range.
    """
    by_category: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for rounds in results.rounds.values():
        for category, (on_accepted, on_rejected) in rounds.entropy.items():
            mine = by_category.setdefault(category, ([], []))
            mine[0].append(on_accepted)
            mine[1].append(on_rejected)
    need(
        by_category,
        "entropies of drafted tokens",
        "a run with a policy whose stop rules read them, such as `tapout-seq-ucb1`",
    )
    figure, (ax,) = panels(height=0.36 * len(by_category) + 0.7)
    for i, (label, side) in enumerate((("accepted", 0), ("rejected", 1))):
        roots = [np.sqrt(np.maximum(np.concatenate(parts[side]), 0.0)) for parts in by_category.values()]
        at = np.arange(len(by_category)) + (i - 0.5) * 0.36
        boxes = ax.boxplot(
            roots,
            orientation="horizontal",
            positions=at,
            widths=0.3,
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            medianprops={"color": INK},
            boxprops={"facecolor": colour(i), "alpha": 0.8, "hatch": hatch(i)},
            whiskerprops={"color": colour(i)},
            capprops={"color": colour(i)},
        )
        boxes["boxes"][0].set_label(label)
    row_names(ax, list(by_category))
    ax.set(xlabel="square root of the drafter's entropy (\N{SQUARE ROOT}nat)")
    ax.invert_yaxis()
    legend_below(figure, ax)
    return figure

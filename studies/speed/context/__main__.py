"""What is known before a draft says about its acceptance beyond the match length, by log-loss.

    python -m studies.speed.context TRACE [TRACE ...] [--target zoo:target] [--picture FILE]

Every text is predicted before it is learned from, at the places where rounds of `auto` began, with the costs
measured with each trace; models start empty on each trace. Rates were chosen on the prompts of even number
(`--half 0`); the tables have the odd ones. Losses are nats for each tested token, against the first line,
with the middle 95 % over resampled texts. `--target` also reads how sure the target was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from draftwise.measure.trace import Trace, read_costs
from studies.common.command import command, start
from studies.common.plot import panels, save

from .models import Model, compared, features, loss
from .rows import Text, certainty, texts

PAGE = "docs/explanation/context.md"
DRAWS = 2000
Losses = np.ndarray[Any, Any]
"""Summed loss and tested tokens of each text."""


def losses(make: Callable[[], Model], traces: Sequence[Sequence[Text]], name: str) -> tuple[Losses, float]:
    """The losses of a model for one drafter on each text, and the microseconds of a round."""
    found, rounds, began = [], 0, perf_counter()
    for played in traces:
        model = make()
        for text in played:
            lost, tokens = 0.0, 0
            for row in (rows[name] for rows in text if name in rows):
                lost += loss(model.chances(row.features), row.accepts)
                tokens += len(row.accepts)
                model.learn(row.features, row.accepts)
                rounds += 1
            model.close()
            found.append((lost, tokens))
    return np.array(found), 1e6 * (perf_counter() - began) / max(1, rounds)


def difference(mine: Losses, first: Losses) -> tuple[float, float, float]:
    """Nats a token more than the first model, and the middle 95 % over resampled texts."""
    picks = np.random.default_rng(0).integers(0, len(mine), (DRAWS, len(mine)))
    gaps = (mine[:, 0] - first[:, 0])[picks].sum(1) / first[:, 1][picks].sum(1)
    low, high = np.quantile(gaps, [0.025, 0.975])
    return float((mine[:, 0] - first[:, 0]).sum() / first[:, 1].sum()), float(low), float(high)


def table(
    made: Mapping[str, Callable[[], Model]], traces: Sequence[Sequence[Text]], names: Sequence[str]
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Print one line for each model; returns its difference to the first by drafter."""
    print("|  | " + " | ".join(names) + " | microseconds |\n" + "|---" * (len(names) + 2) + "|")
    first: dict[str, Losses] = {}
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for label, make in made.items():
        cells, spent = [], 0.0
        found[label] = {}
        for name in names:
            mine, micros = losses(make, traces, name)
            spent += micros
            base = first.setdefault(name, mine)
            gap = found[label][name] = difference(mine, base)
            whole = f"{mine[:, 0].sum() / mine[:, 1].sum():.4f}"
            cells.append(whole if mine is base else f"{gap[0]:+.4f} ({gap[1]:+.4f} to {gap[2]:+.4f})")
        print(f"| {label} | " + " | ".join(cells) + f" | {spent:.0f} |", flush=True)
    return found


def draw(found: Mapping[str, Mapping[str, tuple[float, float, float]]], names: Sequence[str]) -> Any:
    """One panel for each drafter: what each feature saves."""
    figure, axes = panels(len(names), width=2.6, height=2.6)
    labels = [label for label in found if label != "match"][::-1]
    for panel, name in zip(axes, names, strict=True):
        gaps = np.array([found[label][name] for label in labels])
        saved, ends = -gaps[:, 0], np.abs(gaps[:, 1:] - gaps[:, :1]).T
        panel.barh(labels, saved, xerr=ends[::-1], color="#0b6e8a")
        panel.axvline(0.0, color="#444444", linewidth=0.8)
        panel.set(title=name, xlabel="nats saved for each token")
        if panel is not axes[0]:
            panel.set_yticklabels([])
    return figure


def main() -> None:
    """Print both tables and draw the picture."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--half", type=int, choices=(-1, 0, 1), default=1, help="prompts; -1: all")
    parser.add_argument("--target", help="the model that wrote the texts, to read how sure it was")
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    played, names = [], list[str]()
    for folder in asked.traces:
        trace = Trace(folder)
        sure = certainty(trace, asked.target) if asked.target else {}
        whole = list(texts(trace, read_costs(str(folder / "costs.json")), sure))
        played.append([text for i, text in enumerate(whole) if asked.half < 0 or i % 2 == asked.half])
        names = trace.drafters
    table(compared(), played, names)
    print()
    known = {
        name: None
        for trace in played
        for text in trace
        for row in text
        for one in row.values()
        for name in one.features
    }
    found = table(features(list(known)), played, names)
    if asked.picture:
        save(draw(found, names), asked.picture)


if __name__ == "__main__":
    start(main)

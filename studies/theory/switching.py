"""Discounted and windowed learners on arms that change: rounds in excess of the best arm at each position.

    python -m studies.theory.switching [--pictures docs/pictures]

In the first world a generalist is constant while two specialists alternate in being better for a stretch; in
the second the drafters take turns. Discount and window are those of Garivier and Moulines 2008
(arXiv 0805.3415) for the number of changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, sqrt
from random import Random
from typing import Any

import numpy as np

from draftwise.measure.simulate import SimArm, Switching, Text, play
from draftwise.policies.learners.ducb import DiscountedUCB
from draftwise.policies.learners.exp3spec import EXP3Spec
from draftwise.policies.learners.normalhedge import NormalHedge
from draftwise.policies.learners.swucb import SlidingWindowUCB
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.learners.ucbtuned import UCBTuned
from studies.common.command import pictures, start
from studies.common.plot import panels, save
from studies.theory.measure import Vector

PAGE = "docs/explanation/theory.md"

TOKENS = 131_072
CHANGES = (1, 3, 7, 15, 31, 63)
Phases = Sequence[Sequence[float]]

# an old favourite stays as good as it was: only looking again finds the specialist
SPECIALISTS: Phases = [[0.6, 0.3, 0.3], [0.6, 0.95, 0.3], [0.6, 0.3, 0.3], [0.6, 0.3, 0.95]]
# an old favourite breaks down at each change: its own mean gives it away
TURNS: Phases = [[0.8 if i == phase else 0.5 for i in range(4)] for phase in range(4)]


def discount(changes: int, rounds: float) -> float:
    """gamma = 1 - sqrt(changes / rounds) / 4 for rewards in [0, 1]: Garivier and Moulines 2008."""
    return 1.0 - 0.25 * sqrt(changes / rounds)


def window(changes: int, rounds: float) -> int:
    """tau = 2 sqrt(rounds ln(rounds) / changes) for rewards in [0, 1]: Garivier and Moulines 2008."""
    return round(2.0 * sqrt(rounds * log(rounds) / changes))


def learners(arms: int, changes: int, rounds: float) -> Mapping[str, Any]:
    """The learners compared, where `changes` changes come in about `rounds` rounds."""
    gamma = discount(changes, rounds)
    return {
        "UCB1": UCB1(arms),
        "UCB-Tuned": UCBTuned(arms),
        "EXP3Spec": EXP3Spec(arms),
        "discounted UCB": DiscountedUCB(arms, discount=gamma),
        "sliding-window UCB": SlidingWindowUCB(arms, window=window(changes, rounds)),
        "NormalHedge": NormalHedge(arms),
        "NormalHedge, same discount": NormalHedge(arms, memory=gamma),
    }


def behind_the_best(phases: Phases, tokens: int, changes: int, texts: int) -> dict[str, Vector]:
    """Rounds more than playing the best arm of every stretch, shape (texts,), with `changes` changes a text.

    "best fixed arm" is there for comparison. The rounds that the formulas ask for are those of the best arms.
    """
    acceptance = Switching(phases, every=-(-tokens // (changes + 1)))
    arms = [SimArm(i) for i in range(len(phases[0]))]
    at = np.arange(tokens)
    best = np.array([int(np.argmax(phase)) for phase in phases])[acceptance.phase(at)]
    found: dict[str, list[float]] = {}
    for seed in range(texts):
        text = Text.draw(acceptance, arms, tokens, rng=Random(seed))
        least = int(text.ends[best, at].sum())
        for name, learner in learners(len(arms), changes, least).items():
            run = play(learner, text, rng=Random(seed + 10_000))
            found.setdefault(name, []).append(run.rounds - least)
        found.setdefault("best fixed arm", []).append(min(run.fixed) - least)
    return {name: np.array(behind, dtype=np.float64) for name, behind in found.items()}


def draw(curves: Mapping[str, Sequence[Mapping[str, Vector]]]) -> Any:
    """One panel per world: rounds behind against the number of changes."""
    figure, axes = panels(len(curves), height=3.6)
    for ax, (title, points) in zip(axes, curves.items(), strict=True):
        for name in points[0]:
            dashed = "--" if name.startswith("best") else "-"
            ax.plot(CHANGES, [point[name].mean() for point in points], dashed, label=name)
        ax.set(xscale="log", yscale="log", xlabel="changes in the text", title=title)
        ax.set_xticks(CHANGES, [str(change) for change in CHANGES], minor=False)
        ax.minorticks_off()
    axes[0].set_ylabel("rounds behind the best")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    """Print the table and draw the picture."""
    folder = pictures(__doc__, PAGE)
    worlds = {"Specialists beside a generalist": SPECIALISTS, "Drafters take turns": TURNS}
    curves = {}
    for title, phases in worlds.items():
        curves[title] = [behind_the_best(phases, TOKENS, changes, texts=4) for changes in CHANGES]
        print(f"{title}: changes {CHANGES}")
        for name in curves[title][0]:
            print(f"{name:28}" + "".join(f"{point[name].mean():10.0f}" for point in curves[title]))
    save(draw(curves), folder / "regret-switching.svg")


if __name__ == "__main__":
    start(main)

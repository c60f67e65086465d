"""Number and cost of switches: explore-then-commit against learners that never stop exploring.

    python -m studies.theory.commit [--pictures docs/pictures]

Seven stationary drafters in random order, a new learner for each text. The cost of a switch is MetaSD's: the
drafter that plays again first reads all that was written since its own last round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log
from random import Random
from typing import Any

import numpy as np

from draftwise.measure.simulate import SimArm, Stationary, Text, play
from draftwise.policies.learners.commit import ExploreThenCommit, switching_cost
from draftwise.policies.learners.exp3spec import EXP3Spec
from draftwise.policies.learners.gaussian import GaussianThompson
from draftwise.policies.learners.halving import SequentialHalving
from draftwise.policies.learners.normalhedge import NormalHedge
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.learners.ucbspec import UCBSpec
from draftwise.policies.learners.ucbtuned import UCBTuned
from studies.common.command import pictures, start
from studies.common.plot import panels, save
from studies.theory.measure import Vector, doublings

PAGE = "docs/explanation/theory.md"

CHANCES = (0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3)
ARMS = len(CHANCES)

# a learner for a text of so many rounds
LEARNERS: Mapping[str, Callable[[int], Any]] = {
    "explore then commit": lambda rounds: ExploreThenCommit(ARMS, horizon=rounds),
    "explore then commit, c = 32": lambda rounds: ExploreThenCommit(ARMS, horizon=rounds, constant=32.0),
    "sequential halving": lambda rounds: SequentialHalving(ARMS, budget=ceil(4.0 * log(rounds))),
    "MetaSD-UCB, 0.01": lambda rounds: UCB1(ARMS, strength=0.01),
    "UCB-Tuned": lambda rounds: UCBTuned(ARMS),
    "Gaussian Thompson": lambda rounds: GaussianThompson(ARMS),
    "UCBSpec": lambda rounds: UCBSpec(ARMS),
    "UCB1": lambda rounds: UCB1(ARMS),
    "EXP3Spec": lambda rounds: EXP3Spec(ARMS),
    "NormalHedge": lambda rounds: NormalHedge(ARMS),
}


def switches(tokens: int, texts: int, names: Sequence[str] = tuple(LEARNERS)) -> dict[str, Vector]:
    """Mean switches, tokens read again because of them, and regret in rounds, shape (3,) each."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for seed in range(texts):
        chances = list(CHANCES)
        Random(seed).shuffle(chances)
        arms = [SimArm(i) for i in range(ARMS)]
        text = Text.draw(Stationary(chances), arms, tokens, rng=Random(seed))
        best = text.rounds(chances.index(max(chances)))
        for name in names:
            run = play(LEARNERS[name](best), text, rng=Random(seed + 10_000))
            written = (run.accepted.astype(int) + 1).tolist()
            read = switching_cost(run.played.tolist(), written, rate=1.0)
            found[name].append((run.switches, read, run.rounds - best))
    return {name: np.mean(rows, axis=0) for name, rows in found.items()}


def draw(marks: Sequence[int], points: Sequence[Mapping[str, Vector]], shown: int) -> Any:
    """Switches against the length of the text; time lost against the cost of a switch, at one length."""
    figure, (left, right) = panels(2, height=3.6)
    rates = np.geomspace(1e-4, 1.0, 30)
    for i, name in enumerate(points[0]):
        style = {"linestyle": "-" if i < 8 else "--"}
        left.plot(marks, [point[name][0] for point in points], label=name, **style)
        _, read, regret = points[shown][name]
        right.plot(rates, regret + rates * read, **style)
    left.set_xscale("log", base=2)
    left.set(yscale="log", xlabel="tokens B", title="Switches")
    right.set(xscale="log", yscale="log", xlabel="passes per token that is read again")
    right.set(title=f"Passes lost at {marks[shown]} tokens")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    """Print the table and draw the picture."""
    folder = pictures(__doc__, PAGE)
    marks = doublings(8, 14)[::2]
    points = [switches(mark, texts=100) for mark in marks]
    print("switches, tokens read again, regret at " + ", ".join(f"{mark} tokens" for mark in marks))
    for name in LEARNERS:
        row = [" ".join(f"{x:8.1f}" for x in point[name]) for point in points]
        print(f"{name:28}" + "  |".join(row))
    save(draw(marks, points, shown=1), folder / "switches.svg")


if __name__ == "__main__":
    start(main)

"""Stopping-time regret against the number of drafters.

    python -m studies.theory.drafters [--pictures docs/pictures]

One drafter, at a random index, is right with probability 0.8, all others with 0.5; every text is 65536
tokens. Then the same for UCB1 with more similar drafters and shorter texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from draftwise.measure.simulate import SimArm, Stationary
from draftwise.policies.learners.adanormalhedge import AdaNormalHedge
from draftwise.policies.learners.exp3spec import EXP3Spec
from draftwise.policies.learners.hedge import Hedge
from draftwise.policies.learners.leader import FollowTheLeader
from draftwise.policies.learners.normalhedge import NormalHedge
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.learners.ucbspec import UCBSpec
from draftwise.policies.learners.ucbtuned import UCBTuned
from studies.common.command import pictures, start
from studies.common.plot import panels, save
from studies.theory.measure import Makers, Vector, exponent, fit, regrets

PAGE = "docs/explanation/theory.md"

COUNTS = (2, 4, 8, 16, 32, 64)
BANDITS: Makers = {"UCB1": UCB1, "UCBSpec": UCBSpec, "UCB-Tuned": UCBTuned, "EXP3Spec": EXP3Spec}
EXPERTS: Makers = {
    "Hedge": Hedge,
    "AdaNormalHedge": AdaNormalHedge,
    "NormalHedge": NormalHedge,
    "follow the leader": FollowTheLeader,
}


def by_count(
    makers: Makers,
    counts: Sequence[int],
    *,
    tokens: int,
    texts: int,
    best: float = 0.8,
    others: float = 0.5,
) -> dict[str, Vector]:
    """Regret, shape (texts, counts), where each text has the good drafter at another place."""
    columns: dict[str, list[Vector]] = {name: [] for name in makers}
    for count in counts:
        rows: dict[str, list[Vector]] = {name: [] for name in makers}
        for seed in range(texts):
            chances = [others] * count
            chances[Random(seed).randrange(count)] = best
            arms = [SimArm(i) for i in range(count)]
            for name, regret in regrets(makers, Stationary(chances), arms, [tokens], seeds=[seed]).items():
                rows[name].append(regret[0])
        for name, regret_rows in rows.items():
            columns[name].append(np.concatenate(regret_rows))
    return {name: np.stack(each, axis=1) for name, each in columns.items()}


def draw(counts: Sequence[int], bandits: dict[str, Vector], experts: dict[str, Vector]) -> Any:
    """Bandits on linear axes, full information on a logarithmic number of drafters."""
    figure, (left, right) = panels(2)
    for axes, regret in ((left, bandits), (right, experts)):
        for name, values in regret.items():
            error = values.std(axis=0, ddof=1) / len(values) ** 0.5
            axes.errorbar(counts, values.mean(axis=0), error, label=name, marker="o", markersize=3)
        axes.set(xlabel="drafters N", ylim=(0, None))
        axes.legend()
    left.set(ylabel="rounds more than the best arm", title="Bandits")
    right.set_xscale("log", base=2)
    right.set(title="Full information", xticks=counts, xticklabels=counts)
    return figure


def main() -> None:
    """Print the fits and draw the picture."""
    folder = pictures(__doc__, PAGE)
    bandits = by_count(BANDITS, COUNTS, tokens=65_536, texts=4)
    experts = by_count(EXPERTS, COUNTS, tokens=65_536, texts=16)
    for name, values in (bandits | experts).items():
        mean = values.mean(axis=0)
        r2 = "  ".join(f"{shape} {fit(COUNTS, mean, shape)[0]:.3f}" for shape in ("log", "sqrt", "linear"))
        print(f"{name:18} {mean.round(1)}   R2 {r2}   exponent {exponent(COUNTS, mean):.2f}")
    alike = by_count({"UCB1": UCB1}, COUNTS, tokens=32_768, texts=4, best=0.7, others=0.6)["UCB1"]
    print(f"UCB1, 0.7 among 0.6, 32768 tokens: {alike.mean(axis=0).round(1)}")
    save(draw(COUNTS, bandits, experts), folder / "regret-drafters.svg")


if __name__ == "__main__":
    start(main)

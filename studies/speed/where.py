"""`auto` in each category against fixed arms, the best causal rule, and the optimum.

    python -m studies.speed.where TRACE [--costs COSTS] [--picture docs/pictures/losses.svg]

Ratios are of total times, with the middle 95 % over resampled prompts. The arm and the rule are the best in
hindsight, each fitted to the texts of its category. Losses against the optimum are in percent of the time of
`auto`, and add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.measure.trace import Costs, Replay, Trace, read_costs
from draftwise.measure.trace.causal import Rule, causal
from draftwise.measure.trace.fixed import Arm, fixed
from draftwise.measure.trace.losses import KINDS, losses
from draftwise.measure.trace.stage import Stage
from draftwise.policies.catalogue import method
from studies.common.command import command, start
from studies.common.plot import panels, save
from studies.speed.ablation import ratio

PAGE = "docs/archive/auto.md"


@dataclass
class Place:
    """One category: the seconds of `auto` and of every fixed arm on each text, and what was lost where."""

    stages: list[Stage] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    arms: list[Mapping[Arm, float]] = field(default_factory=list)
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))

    def best_fixed(self) -> tuple[Arm, list[float]]:
        """The arm of the least time in all, and its seconds on each text."""
        arm = min(self.arms[0], key=lambda a: sum(one[a] for one in self.arms))
        return arm, [one[arm] for one in self.arms]

    def share(self, kind: str) -> float:
        """What was lost in this way, as a part of all time."""
        return self.lost[kind] / sum(self.seconds)


def places(trace: Trace, costs: Costs, policy: str = "auto") -> dict[str, Place]:
    """Every category of a trace, which the policy plays from its first text to its last."""
    found: dict[str, Place] = defaultdict(Place)
    loop = Replay(trace, method(policy, trace.team(policy)), costs)
    for recording in trace:
        stage, place = Stage(recording), found[recording.category]
        seconds, lost = losses(loop, stage)
        place.stages.append(stage)
        place.seconds.append(seconds)
        place.arms.append(fixed(stage, costs))
        for kind in KINDS:
            place.lost[kind] += lost[kind]
    return dict(sorted(found.items()))


def line(name: str, place: Place, rule: Rule) -> str:
    """One row of the table."""
    arm, alone = place.best_fixed()
    mine = np.array(place.seconds)
    cells = [name, str(len(mine))]
    for label, other in ((f"`{arm[0]}` {arm[1]}", alone), (_said(rule), rule.seconds)):
        value, low, high = ratio(np.array(other), mine)
        cells += [label, f"{value:.3f} ({low:.3f} to {high:.3f})"]
    cells.append(f"{100 * (1 - sum(map(place.share, KINDS))):.1f} %")
    return " | ".join(["", *cells, *(f"{100 * place.share(kind):.1f}" for kind in KINDS), ""]).strip()


def _said(rule: Rule) -> str:
    return f"`{rule.drafter}` {rule.length}, {rule.threshold:.2f}"


def draw(found: Mapping[str, Place]) -> Any:
    """One bar for each category: the optimum, and what was lost on top of it."""
    figure, (axes,) = panels(1, width=7.4, height=3.6)
    names = list(found)[::-1]
    left = np.array([1.0 - sum(map(found[name].share, KINDS)) for name in names])
    axes.barh(names, left, color="#9aa5b1", label="optimum")
    for kind in KINDS:
        part = np.array([max(0.0, found[name].share(kind)) for name in names])
        axes.barh(names, part, left=left, label=kind)
        left = left + part
    axes.set(xlabel="part of the time of auto", xlim=(0.6, 1.0))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and draw the picture."""
    parser = command(__doc__, PAGE)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--costs", help="a file, a profile or c=NUMBER; by default those of the trace")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args(arguments)
    costs = read_costs(asked.costs or str(asked.trace / "costs.json"))
    found = places(Trace(asked.trace), costs, asked.policy)
    heads = ["category", "prompts", "best fixed", "against it", "best rule", "against it", "of the optimum"]
    print("|", " | ".join([*heads, *KINDS]), "|\n" + "|---" * (len(heads) + len(KINDS)) + "|")
    for name, place in found.items():
        print(line(name, place, causal(place.stages, costs)), flush=True)
    if asked.picture:
        save(draw(found), asked.picture)


if __name__ == "__main__":
    start(main)

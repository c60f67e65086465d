"""`auto` against the best fixed arm and "lookup, else model", by category: priced replays of a greedy trace.

    python -m studies.speed.categories TRACE [--costs NAME,...]

All prompts, in their order. The fixed arm and the rule are the best in hindsight for all prompts together, as
in `studies.speed.baselines`. Ratios are their time over that of `auto`, with the middle 95 % over resampled
prompts; above 1 `auto` is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from draftwise.measure.trace import Costs, Trace, read_costs
from draftwise.measure.trace.oracle import best, fixed
from draftwise.measure.trace.state import ReplayState
from studies.common.command import command, listed, start
from studies.common.paired import cell, ratio
from studies.speed.baselines import Text, least, played, rules

PAGE = "docs/explanation/toys.md"


def lines(trace: Trace, names: list[str], texts: list[Text], costs: Costs, said: str) -> Iterator[str]:
    """Rows of the table: each category, then all."""
    stages = [text.stage for text in texts]
    mine = played(trace, "auto", costs, stages)
    optimum = np.array([best(stage, costs).seconds for stage in stages])
    arms = [fixed(stage, costs) for stage in stages]
    arm, alone = least({arm: np.array([one[arm] for one in arms]) for arm in arms[0]})
    tried = {rule: np.array([text.otherwise(costs, rule) for text in texts]) for rule in rules(trace)}
    rule, other = least(tried)
    for name in [*dict.fromkeys(names), "all"]:
        at = np.array([name in (one, "all") for one in names])
        share = f"{100 * optimum[at].sum() / mine[at].sum():.1f} %"
        against = [cell(*ratio(mine[at], its[at]), 2) for its in (alone, other)]
        yield "| " + " | ".join([said, f"{name} ({at.sum()})", share, *against]) + " |"
    yield f"<!-- {said}: {arm}, {rule} -->"


def main() -> None:
    """Print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--costs", type=listed, default="measured,llama-8b-eagle,llama-8b-1b")
    args = parser.parse_args()
    trace = Trace(args.trace)
    texts = [Text(ReplayState(one)) for one in trace]
    names = [one.category for one in trace]
    heads = ["costs", "category", "of the optimum", "against the best fixed", 'against "lookup, else model"']
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name in args.costs:
        costs = read_costs(str(args.trace / "costs.json") if name == "measured" else name)
        for line in lines(trace, names, texts, costs, name):
            print(line, flush=True)


if __name__ == "__main__":
    start(main)

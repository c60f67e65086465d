"""`auto` against that of another checkout, or without a part, in several random orders of the prompts.

    python -m studies.speed.orders TRACE [TRACE ...] --tree ../before
    python -m studies.speed.orders TRACE [TRACE ...] --without guard --without stop [--half even]

A change of `auto` also changes by chance what is learned when, which moves the total of 40 prompts in one
order by some percent: more than most changes are worth. So the prompts are played in several orders, the same
for both. The table has the time of the other, or of this one without the part, over that of this one: above 1
this one is faster. It is the mean of the logarithms, with its standard error.

Drafts are not longer than those that a trace holds, as with `auto?length=8`; on drawn texts no model stops,
since their traces do not hold where it would.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.auto.drafts import LENGTHS
from draftwise.policies.catalogue import Method
from studies.common.command import command, in_tree, listed, start
from studies.common.tables import heading, row
from studies.common.traces import costs_of, seconds
from studies.speed.without import PARTS, Without, without

PAGE = "docs/explanation/auto-measured.md"
HALVES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}
Seconds = Mapping[str, list[float]]
"""Of all prompts in each order, by trace and costs."""


def play(options: Mapping[str, Any], part: str = "") -> Seconds:
    """Play `auto` without this part."""
    result = {}
    for folder, name in product(map(Path, options["traces"]), options["costs"]):
        trace, costs = Trace(folder), costs_of(folder, name)
        states = [ReplayState(one) for one in trace][HALVES[options["half"]]]
        totals = result[f"{folder.name} | {name}"] = list[float]()
        for seed in range(options["orders"]):
            order = list(states)
            Random(seed).shuffle(order)
            replay = Replay(trace, _method(part, trace), costs)
            totals.append(sum(seconds(replay, order[: options["prompts"]])))
    return result


def _method(part: str, trace: Trace) -> Method:
    method = without(part, trace.team("auto"), length=min(LENGTHS[-1], trace.header.length))
    if trace.header.temperature > 0.0 and isinstance(method.policy, Without):
        method.policy.missing |= {"stop"}
    return method


def child(options: dict[str, Any]) -> None:
    """Print the seconds of this tree as JSON."""
    print(json.dumps(play(options)))


def table(title: str, before: Seconds, after: Seconds) -> None:
    """Print one row for each trace and costs, and the mean of all."""
    print(f"\n{title}\n\n{heading('prompts', 'costs', 'ratio')}")
    means, errors = [], []
    for key in before:
        logs = np.log(np.array(before[key]) / np.array(after[key]))
        means.append(logs.mean())
        errors.append(logs.std(ddof=1) / len(logs) ** 0.5)
        print(row(key, f"{np.exp(means[-1]):.4f} +- {errors[-1]:.4f}"))
    error = np.linalg.norm(errors) / len(errors)
    print(row("all", "all", f"{np.exp(np.mean(means)):.4f} +- {error:.4f}"), flush=True)


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", help="folders of traces")
    parser.add_argument("--costs", type=listed, default=["measured", "llama-8b-eagle", "llama-8b-1b"])
    parser.add_argument("--orders", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=160, help="prompts of an order at most")
    parser.add_argument("--half", choices=list(HALVES), default="all", help="prompts of even or odd number")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout")
    parser.add_argument("--without", action="append", default=[], choices=PARTS, help="a part left out")
    options = vars(parser.parse_args())
    options["traces"] = [str(Path(one).resolve()) for one in options["traces"]]
    trees, parts = options.pop("tree"), options.pop("without")
    mine = play(options)
    for tree in trees:
        table(f"{tree}, over here", in_tree(tree, "studies/speed/orders.py", options), mine)
    for part in parts:
        table(f"without {part}, over here", play(options, part), mine)


if __name__ == "__main__":
    start(main)

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
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from draftwise.measure.trace import Replay, Trace, read_costs
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.auto.drafts import LENGTHS
from draftwise.policies.catalogue import Method
from studies.common.command import command, listed, start
from studies.common.paired import Real
from studies.speed.without import PARTS, Without, without

PAGE = "docs/explanation/auto-measured.md"
HALVES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}


def play(options: Mapping[str, Any], part: str = "") -> dict[str, list[float]]:
    """Seconds of all prompts in each order, without this part of `auto`, by trace and costs."""
    seconds = {}
    for folder, name in product(map(Path, options["traces"]), options["costs"]):
        trace = Trace(folder)
        costs = read_costs(str(folder / "costs.json") if name == "measured" else name)
        stages = [ReplayState(one) for one in trace][HALVES[options["half"]]]
        seconds[f"{folder.name} | {name}"] = [
            _seconds(Replay(trace, _method(part, trace), costs), stages, seed, options["prompts"])
            for seed in range(options["orders"])
        ]
    return seconds


def _method(part: str, trace: Trace) -> Method:
    method = without(part, trace.team("auto"), length=min(LENGTHS[-1], trace.header.length))
    if trace.header.temperature > 0.0 and isinstance(method.policy, Without):
        method.policy.missing |= {"stop"}
    return method


def _seconds(replay: Replay, stages: Sequence[ReplayState], seed: int, most: int) -> float:
    order = list(stages)
    Random(seed).shuffle(order)
    return sum(round.seconds.total for stage in order[:most] for round in replay.replay(stage))


def child(options: dict[str, Any]) -> None:
    """Print the seconds of this tree as JSON."""
    print(json.dumps(play(options)))


def _there(tree: Path, options: Mapping[str, Any]) -> dict[str, list[float]]:
    """The same in another checkout, by its own study if it has this one."""
    tree = tree.resolve()
    own = tree / "studies" / "speed" / "orders.py"
    script, studies = (own, tree) if own.exists() else (Path(__file__), Path.cwd())
    code = f"import runpy; runpy.run_path({str(script)!r})['child']({dict(options)!r})"
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{studies}"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=studies, env=environment, stdout=subprocess.PIPE, check=True
    )
    seconds: dict[str, list[float]] = json.loads(ran.stdout.splitlines()[-1])
    return seconds


def _rows(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> Mapping[str, Real]:
    return {key: np.log(np.array(before[key]) / np.array(after[key])) for key in before}


def table(title: str, rows: Mapping[str, Real]) -> None:
    """Print one row for each trace and costs, and the mean of all."""
    print(f"\n{title}\n\n| prompts | costs | ratio |\n|---|---|---|")
    for key, logs in rows.items():
        print(f"| {key} | {np.exp(logs.mean()):.4f} +- {logs.std(ddof=1) / len(logs) ** 0.5:.4f} |")
    error = sum(logs.var(ddof=1) / len(logs) for logs in rows.values()) ** 0.5 / len(rows)
    mean = np.exp(np.mean([logs.mean() for logs in rows.values()]))
    print(f"| all | all | {mean:.4f} +- {error:.4f} |", flush=True)


def main() -> None:
    """Print a table for each tree and part."""
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
        table(f"{tree}, over here", _rows(_there(tree, options), mine))
    for part in parts:
        table(f"without {part}, over here", _rows(play(options, part), mine))


if __name__ == "__main__":
    start(main)

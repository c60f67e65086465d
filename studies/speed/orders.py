"""`auto` against that of another checkout, with other constants, or without a part, in several random orders.

    python -m studies.speed.orders TRACE [TRACE ...] --tree ../before
    python -m studies.speed.orders TRACE [TRACE ...] --with skill.lean=6 --with pace.memory=0.98 [--half even]
    python -m studies.speed.orders TRACE [TRACE ...] --without text --without stop

A change of `auto` also changes by chance what is learned when, which moves the total of 40 prompts in one
order by some percent: more than most changes are worth. So the prompts are played in several orders, the same
for both. The table has the time of the other over that of this one, of this one over that with the constant,
or of that without the part over this one: above 1 the one named second is faster. It is the mean of the
logarithms, with its standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from draftwise.errors import UserError
from draftwise.measure.trace import Replay, Trace, read_costs
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.auto.acceptance import AcceptanceEstimate
from draftwise.policies.auto.candidates import CONTEXTS, LENGTHS
from draftwise.policies.auto.costs import Throughput
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.catalogue import Method
from draftwise.policies.catalogue.auto import team
from studies.common.command import command, listed, start
from studies.common.paired import Real
from studies.speed.without import PARTS, never_stop, without

PAGE = "docs/explanation/toys.md"
SHAPE = (CONTEXTS, LENGTHS[-1])  # of `AcceptanceEstimate`
HALVES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}
Make = Callable[[Sequence[str]], Method]


def built(setting: str) -> Make:
    """`auto`, with one constant changed: `skill.NAME=VALUE` or `pace.NAME=VALUE`.

    Raises:
        UserError: no such constant.
    """
    name, _, value = setting.partition("=")
    part, _, option = name.partition(".")
    options: dict[str, Any] = {}
    try:
        if setting:
            kind: type = {"skill": AcceptanceEstimate, "pace": Throughput}[part]
            options[part] = partial(kind, *(SHAPE if part == "skill" else ()), **{option: float(value)})
            options[part]()
    except (KeyError, TypeError, ValueError):
        raise UserError(f"--with {setting}: give skill.NAME=NUMBER or pace.NAME=NUMBER") from None

    def make(drafters: Sequence[str]) -> Method:
        chosen: dict[str, Any] = {"new_skill": options["skill"]} if "skill" in options else {}
        chosen |= {"pace": options["pace"]()} if "pace" in options else {}
        policy = AutoPolicy(*team(drafters, LENGTHS), **chosen)
        return Method(policy, AutoRecorder(policy))

    return make


def played(asked: Mapping[str, Any], make: Make | None = None) -> dict[str, list[float]]:
    """Seconds of all prompts in each order, by trace and costs."""
    found, make = {}, make or built("")
    for folder, name in product(map(Path, asked["traces"]), asked["costs"]):
        trace = Trace(folder)
        costs = read_costs(str(folder / "costs.json") if name == "measured" else name)
        stages = [ReplayState(one) for one in trace][HALVES[asked["half"]]]
        found[f"{folder.name} | {name}"] = [
            _seconds(Replay(trace, _made(make, trace), costs), stages, seed, asked["prompts"])
            for seed in range(asked["orders"])
        ]
    return found


def _made(make: Make, trace: Trace) -> Method:
    """A new policy; a trace of drawn texts does not hold where a model would stop, so none does."""
    made = make(trace.team("auto"))
    if trace.header.temperature > 0.0 and isinstance(made.policy, AutoPolicy):
        made.policy.stopping = never_stop
    return made


def _seconds(replay: Replay, stages: Sequence[ReplayState], seed: int, most: int) -> float:
    order = list(stages)
    Random(seed).shuffle(order)
    return sum(round.seconds.total for stage in order[:most] for round in replay.replay(stage))


def child(asked: dict[str, Any]) -> None:
    """Print the seconds of this tree as JSON."""
    print(json.dumps(played(asked)))


def _there(tree: Path, asked: Mapping[str, Any]) -> dict[str, list[float]]:
    """The same in another checkout, by its own study if it has this one."""
    tree = tree.resolve()
    own = tree / "studies" / "speed" / "orders.py"
    script, studies = (own, tree) if own.exists() else (Path(__file__), Path.cwd())
    code = f"import runpy; runpy.run_path({str(script)!r})['child']({dict(asked)!r})"
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
    """Print a table for each tree or constant."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", help="folders of traces")
    parser.add_argument("--costs", type=listed, default=["measured", "llama-8b-eagle", "llama-8b-1b"])
    parser.add_argument("--orders", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=160, help="prompts of an order at most")
    parser.add_argument("--half", choices=list(HALVES), default="all", help="prompts of even or odd number")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout")
    parser.add_argument("--with", dest="settings", action="append", default=[], help="a changed constant")
    parser.add_argument("--without", action="append", default=[], choices=PARTS, help="a part left out")
    asked = vars(parser.parse_args())
    asked["traces"] = [str(Path(one).resolve()) for one in asked["traces"]]
    trees, settings, parts = (asked.pop(name) for name in ("tree", "settings", "without"))
    mine = played(asked)
    for tree in trees:
        table(f"{tree}, over here", _rows(_there(tree, asked), mine))
    for setting in settings:
        table(f"here, over {setting}", _rows(mine, played(asked, built(setting))))
    for part in parts:
        table(f"without {part}, over here", _rows(played(asked, partial(without, part)), mine))


if __name__ == "__main__":
    start(main)

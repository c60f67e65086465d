"""What `auto` loses to a state that was learned elsewhere, against a fresh start: priced replays.

    python -m studies.speed.carried TRACE [TRACE ...] [--costs NAME,...] [--prompts 60] [--orders 3]

A state is learned on every other trace, on that trace under other costs, and on made-up texts where every
draft is right, or every draft is wrong; then the prompts of a trace are played from it and from nothing, in
the same orders. Ratios are the time from the state over that from nothing, with the middle 95 % over
resampled prompts and orders: 1.01 is a loss of 1 %. The last column has the state with the full weight of
what was learned, the one before it as `auto` reads it from a file (`Skill.restart`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.measure.trace import Costs, Replay, Trace, read_costs
from draftwise.measure.trace.stage import Stage
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.catalogue import method
from draftwise.state.numbers import dump, load, restart
from studies.common.command import command, listed, start
from studies.common.paired import cell, ratio

PAGE = "docs/explanation/auto-measured.md"
FALSE = 300  # drafts for each context that a bad state says it has seen: its memory's length
State = Mapping[str, Any]


def played(
    trace: Trace,
    costs: Costs,
    stages: Sequence[Stage],
    orders: Sequence[Sequence[int]],
    state: State | None = None,
    *,
    whole: bool = False,
) -> NDArray[np.float64]:
    """Seconds of each text by order, from a state: as a file brings it, or as it was learned (`whole`)."""
    found = np.zeros((len(orders), len(stages)))
    for row, order in zip(found, orders, strict=True):
        made = method("auto", trace.team("auto"))
        if state is not None:
            load(made.policy, state)
            if not whole:
                restart(made.policy)
        loop = Replay(trace, made, costs)
        for i in order:
            row[i] = sum(round.seconds.total for round in loop.play(stages[i]))
    return found


def learned(trace: Trace, costs: Costs, stages: Sequence[Stage]) -> State:
    """What `auto` knows after these texts."""
    made = method("auto", trace.team("auto"))
    loop = Replay(trace, made, costs)
    for stage in stages:
        list(loop.play(stage))
    return dump(made.policy)


def false(state: State, drafters: Sequence[str], right: bool) -> State:
    """The state with the true costs, which has seen every draft right, or every draft wrong."""
    policy = method("auto", drafters).policy
    assert isinstance(policy, AutoPolicy)
    load(policy, state)
    for skill in policy.skills:
        for context in range(skill.contexts):
            for _ in range(FALSE):
                skill.learn(-1, context, (1.0,) * skill.longest if right else (0.0,))
        skill.close(-1)
    return dump(policy)


def states(
    at: str, name: str, traces: Mapping[str, tuple[Trace, Sequence[Stage]]], known: Sequence[str]
) -> Iterator[tuple[str, State]]:
    """Every state that the texts `at` are played from, under the costs `name`."""
    drafters = traces[at][0].team("auto")
    for source, (trace, stages) in traces.items():
        if source != at:
            yield f"`{source}`", learned(trace, _costs(name, at), stages)
            other = known[(known.index(name) + 1) % len(known)]
            if other != name:
                yield f"`{source}`, costs {said(other)}", learned(trace, _costs(other, at), stages)
    true = learned(traces[at][0], _costs(name, at), traces[at][1])
    yield "every draft right", false(true, drafters, True)
    yield "every draft wrong", false(true, drafters, False)


def _costs(name: str, trace: str) -> Costs:
    return read_costs(str(Path(trace) / "costs.json") if name == "measured" else name)


def said(name: str) -> str:
    """How a table names costs."""
    return name if name == "measured" else f"`{name}`"


def main() -> None:
    """Print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--costs", type=listed, default="measured,llama-8b-1b")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--orders", type=int, default=3)
    asked = parser.parse_args()
    traces = {name: (trace := Trace(name), [Stage(one) for one in trace]) for name in asked.traces}
    heads = ["played", "costs", "learned on", "prompts", "as a file brings it", "as it was learned"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for at, (trace, whole) in traces.items():
        stages = Random(0).sample(whole, min(asked.prompts, len(whole)))
        orders = [Random(seed).sample(range(len(stages)), len(stages)) for seed in range(asked.orders)]
        for name in asked.costs:
            costs = _costs(name, at)
            fresh = played(trace, costs, stages, orders)
            for label, state in states(at, name, traces, asked.costs):
                cells = [
                    Path(at).name,
                    said(name),
                    label.replace(f"{Path(at).parent}/", ""),
                    str(len(stages)),
                ]
                for kept in (False, True):
                    mine = played(trace, costs, stages, orders, state, whole=kept)
                    cells.append(cell(*ratio(fresh, mine)))
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    start(main)

"""`auto` against the optimum, the best fixed arm and "lookup, else model", on traces, by category.

    python -m studies.speed.baselines TRACE [TRACE ...]
    python -m studies.speed.baselines TRACE --drafters HEAD,ngram --costs llama-8b-1b,MINE/costs.json

The fixed arm and "lookup, else model" (a lookup and its draft length, a shortest match, a model and its draft
length) are the best in hindsight, fitted to the prompts that they are compared on. Ratios are of total times,
with the middle 95 % over resampled prompts. The first is of plain decoding's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np

from draftwise.measure.trace import Costs, Replay, Trace
from draftwise.measure.trace.oracle import best, confirmed, fixed
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.auto.drafts import LENGTHS
from draftwise.policies.catalogue import method
from studies.common.command import command, listed, start
from studies.common.tables import Real, cell, heading, ratio, row
from studies.common.traces import costs_of, seconds

PAGE = "docs/explanation/toys.md"
MATCHES, LOOKED, DRAFTED = (1, 2, 3, 4), (2, 4, 8, 16), (0, 1, 2, 3, 4, 6, 8)
Rule = tuple[str, int, int, str, int]
"""A lookup, its shortest match, its draft length, and a model with its draft length."""


def rules(trace: Trace) -> list[Rule]:
    """Every "lookup, else model" that is tried."""
    models = [name for name, grades in trace.header.drafters.items() if grades]
    lookups = [name for name in trace.header.drafters if name not in models]
    looked, drafted = ([n for n in lengths if n <= trace.header.length] for lengths in (LOOKED, DRAFTED))
    return list(product(lookups, MATCHES, looked, models, drafted))


class Text:
    """One text with the number of right tokens of every draft."""

    def __init__(self, stage: ReplayState) -> None:
        self.stage = stage
        self.right = {name: confirmed(stage, lines).tolist() for name, lines in stage.drafters.items()}

    def otherwise(self, costs: Costs, rule: Rule) -> float:
        """Seconds by "lookup, else model"."""
        lookup, match, looked, model, drafted = rule
        lines, one = self.stage.drafters, self.stage.recording
        at, read, seconds = 0, 0, 0.0
        while at < one.committed:
            name, wanted = (lookup, looked) if lines[lookup].hint[at] >= match else (model, drafted)
            length = min(wanted, one.budget - at - 1)
            n = lines[name].span(at, length)[1] if length > 0 else 0
            if not n and name == lookup:
                name, length = model, min(drafted, one.budget - at - 1)
                n = lines[model].span(at, length)[1] if length > 0 else 0
            accepted = self.right[name][length - 1][at] if n else 0
            seconds += costs.target(1 + n)
            if n:
                mine, here = costs.of(name), one.prompt.size + at
                seconds += mine.draft(n)
                if name == model:
                    seconds += mine.catch_up * (here - read)
                    read = here + accepted + 1
            at += accepted + 1
        return seconds


Name = TypeVar("Name")


def least(candidates: Mapping[Name, Real]) -> tuple[Name, Real]:
    """The candidate of the least total time."""
    name = min(candidates, key=lambda one: float(candidates[one].sum()))
    return name, candidates[name]


def best_fixed(stages: Sequence[ReplayState], costs: Costs) -> tuple[tuple[str, int], Real]:
    """The drafter and length of the least total time, with the seconds of each text."""
    arms = [fixed(stage, costs) for stage in stages]
    return least({arm: np.array([one[arm] for one in arms]) for arm in arms[0]})


def lines(trace: Trace, labels: Sequence[str]) -> Iterator[str]:
    """Rows of each category and of all: `auto` against what is best in hindsight for all prompts together."""
    auto = f"auto?length={min(LENGTHS[-1], trace.header.length)}"
    texts, names = [Text(ReplayState(one)) for one in trace], [one.category for one in trace]
    stages = [text.stage for text in texts]
    for label in labels:
        costs = costs_of(trace.folder, label)
        replay = Replay(trace, method(auto, trace.team(auto)), costs)
        mine = np.array(seconds(replay, stages))
        optimum = np.array([best(stage, costs).seconds for stage in stages])
        arm, alone = best_fixed(stages, costs)
        tried = {rule: np.array([text.otherwise(costs, rule) for text in texts]) for rule in rules(trace)}
        plain = np.array([costs.target(1) * stage.recording.committed for stage in stages])
        rule, other = least(tried) if tried else (None, None)
        for name in [*dict.fromkeys(names), "all"]:
            at = np.array([name in (one, "all") for one in names])
            share = f"{100 * optimum[at].sum() / mine[at].sum():.1f} %"
            them = (plain, alone, other)
            against = ["-" if its is None else cell(*ratio(mine[at], its[at]), 2) for its in them]
            yield row(label, f"{name} ({at.sum()})", share, *against)
        yield f"<!-- {label}: {arm}, {rule} -->"


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--costs", type=listed, default=["measured", "llama-8b-eagle", "llama-8b-1b"])
    parser.add_argument(
        "--drafters", type=listed, default=[], help="those of a trace that play; default: all"
    )
    args = parser.parse_args()
    against = "against plain", "against the best fixed", 'against "lookup, else model"'
    print(heading("costs", "category", "of the optimum", *against))
    for folder in args.traces:
        for line in lines(Trace(folder, args.drafters), args.costs):
            print(line, flush=True)


if __name__ == "__main__":
    start(main)

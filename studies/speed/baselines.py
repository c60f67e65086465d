"""`auto` against the optimum, the best fixed arm and "lookup, else model", on halves of traces.

    python -m studies.speed.baselines TRACE [TRACE ...] [--half 1] [--policy auto,auto-cascades]
    python -m studies.speed.baselines TRACE [TRACE ...] --categories     # `auto` on all prompts, by category

Three costs for each trace: measured with it, `llama-8b-eagle` and `llama-8b-1b`. Constants of `auto` were
chosen on the prompts of even number (`--half 0`); results are those of the odd ones. The fixed arm and
"lookup, else model" (a lookup and its draft length, a shortest match, a model and its draft length) are the
best in hindsight, fitted to the prompts that they are compared on; the last column has the rule that is best
on the other half. `auto-cascades` is `auto` without cascades, and so for all parts of the ablation. Ratios
are of total times, with the middle 95 % over resampled prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np

from draftwise.measure.trace import Costs, Replay, Trace
from draftwise.measure.trace.oracle import best, best_composite, confirmed, fixed
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.catalogue import method
from studies.common.command import command, listed, start
from studies.common.tables import Real, cell, heading, ratio, row
from studies.common.traces import costs_of, seconds
from studies.speed.without import without

PAGE = "docs/explanation/toys.md"
COSTS = ("measured", "llama-8b-eagle", "llama-8b-1b")
MATCHES, LOOKED, DRAFTED = (1, 2, 3, 4), (2, 4, 8, 16), (0, 1, 2, 3, 4, 6, 8)
Rule = tuple[str, int, int, str, int]
"""A lookup, its shortest match, its draft length, and a model with its draft length."""


def rules(trace: Trace) -> list[Rule]:
    """Every "lookup, else model" that is tried."""
    models = [name for name, grades in trace.header.drafters.items() if grades]
    lookups = [name for name in trace.header.drafters if name not in models]
    return list(product(lookups, MATCHES, LOOKED, models, DRAFTED))


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


def played(trace: Trace, policy: str, costs: Costs, stages: Sequence[ReplayState]) -> Real:
    """Seconds of a policy on each text; `auto-PART` is `auto` without that part."""
    part = policy.removeprefix("auto-") if policy.startswith("auto-") else None
    names = trace.team("auto" if part else policy)
    chosen_method = without(part, names) if part else method(policy, names)
    return np.array(seconds(Replay(trace, chosen_method, costs), stages))


Name = TypeVar("Name")


def least(candidates: Mapping[Name, Real]) -> tuple[Name, Real]:
    """The candidate of the least total time."""
    name = min(candidates, key=lambda one: float(candidates[one].sum()))
    return name, candidates[name]


def best_fixed(stages: Sequence[ReplayState], costs: Costs) -> tuple[tuple[str, int], Real]:
    """The drafter and length of the least total time, with the seconds of each text."""
    arms = [fixed(stage, costs) for stage in stages]
    return least({arm: np.array([one[arm] for one in arms]) for arm in arms[0]})


def lines(folder: Path, half: int, policies: Sequence[str]) -> Iterator[str]:
    """Rows of the table for each of the three costs."""
    trace = Trace(folder)
    whole = [Text(ReplayState(one)) for one in trace]
    texts = [text for i, text in enumerate(whole) if half < 0 or i % 2 == half]
    rest = [text for i, text in enumerate(whole) if half < 0 or i % 2 != half]
    stages = [text.stage for text in texts]
    for name in COSTS:
        costs = costs_of(folder, name)
        optimum = sum(best(stage, costs).seconds for stage in stages)
        composite = sum(best_composite(stage, costs) for stage in stages)
        arm, alone = best_fixed(stages, costs)
        tried = _tried(trace, texts, costs)
        rule, other = least(tried)
        elsewhere = tried[least(_tried(trace, rest, costs))[0]]
        for policy in policies:
            mine = played(trace, policy, costs, stages)
            shares = [f"{100 * least_ / mine.sum():.1f} %" for least_ in (optimum, composite)]
            cells = [f"{cell(*ratio(mine, alone))} `{arm}`", f"{cell(*ratio(mine, other))} `{rule}`"]
            yield row(folder.name, name, policy, len(mine), *shares, *cells, cell(*ratio(mine, elsewhere)))


def category_lines(folder: Path) -> Iterator[str]:
    """Rows of each category and of all: `auto` against what is best in hindsight for all prompts together."""
    trace = Trace(folder)
    texts, names = [Text(ReplayState(one)) for one in trace], [one.category for one in trace]
    stages = [text.stage for text in texts]
    for label in COSTS:
        costs = costs_of(folder, label)
        mine = played(trace, "auto", costs, stages)
        optimum = np.array([best(stage, costs).seconds for stage in stages])
        arm, alone = best_fixed(stages, costs)
        rule, other = least(_tried(trace, texts, costs))
        for name in [*dict.fromkeys(names), "all"]:
            at = np.array([name in (one, "all") for one in names])
            share = f"{100 * optimum[at].sum() / mine[at].sum():.1f} %"
            against = [cell(*ratio(mine[at], its[at]), 2) for its in (alone, other)]
            yield row(label, f"{name} ({at.sum()})", share, *against)
        yield f"<!-- {label}: {arm}, {rule} -->"


def _tried(trace: Trace, texts: Sequence[Text], costs: Costs) -> dict[Rule, Real]:
    """Seconds of each "lookup, else model" on these texts."""
    return {rule: np.array([text.otherwise(costs, rule) for text in texts]) for rule in rules(trace)}


def main() -> None:
    """Print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--half", type=int, choices=(-1, 0, 1), default=1, help="prompts; -1: all")
    parser.add_argument("--policy", type=listed, default="auto", help="policies, or auto-PART without a part")
    parser.add_argument("--categories", action="store_true", help="`auto` by category, on all prompts")
    args = parser.parse_args()
    heads = ["costs", "category", "of the optimum", "against the best fixed", 'against "lookup, else model"']
    if not args.categories:
        heads = ["trace", "costs", "policy", "prompts", "of the optimum", "of the composite one", *heads[-2:]]
        heads += ["fitted to the other half"]
    print(heading(*heads))
    for folder in args.traces:
        for line in category_lines(folder) if args.categories else lines(folder, args.half, args.policy):
            print(line, flush=True)


if __name__ == "__main__":
    start(main)

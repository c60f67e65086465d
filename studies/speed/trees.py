"""What trees of a head's drafts are worth, counted on a model and priced by tables of costs.

    python -m studies.speed.trees --costs COSTS[,COSTS...] [--head eagle:zoo:smollm2-eagle3] [--beside ngram]

Chains and EAGLE-2's trees of at most `length * width` nodes, and `auto` with trees and without, which
learns the prices as it goes, on the same Spec-Bench prompts, greedy. The model runs, and a round takes the
seconds of the table: of a pass over its nodes and one token, and of the head's steps, one for each depth,
whose further nodes cost what reading takes. The table has the tokens per second over those of plain decoding;
and the speed of `auto` with trees over that without has its middle 95 % over resampled prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from draftwise import Decoder, Sampling
from draftwise.core.drafter_pool import DrafterPool
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Grade
from draftwise.core.roles import GradeJob
from draftwise.data import spec_bench
from draftwise.measure.trace import Costs, read_costs
from draftwise.measure.trace.replay import PricedClock
from draftwise.policies.catalogue import method
from studies.common.command import command, listed, numbers, start

PAGE = "docs/explanation/auto-measured.md"


class Counts(NamedTuple):
    """Of every prompt, the rounds of one setting: drafted nodes, their depth, and written tokens."""

    name: str
    texts: list[list[tuple[int, int, int]]]

    def totals(self, costs: Costs, head: str) -> list[tuple[int, float]]:
        """Tokens and seconds of every prompt."""
        return [
            (
                sum(tokens for *_, tokens in text),
                sum(seconds(costs, head, nodes, depth) + costs.target(1 + nodes) for nodes, depth, _ in text),
            )
            for text in self.texts
        ]


def seconds(costs: Costs, drafter: str, nodes: int, depth: int) -> float:
    """Seconds of a draft: a step for each depth, which reads the other nodes beside the first."""
    of = costs.of(drafter.partition("?")[0])
    return of.draft(depth) + (nodes - depth) * of.catch_up if nodes else 0.0


def depth_of(draft: Draft) -> int:
    """The depth of a draft's tree."""
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)


class PricedPool(DrafterPool):
    """Drafters whose calls take the seconds of a table."""

    costs: Costs

    def draft(self, jobs: Mapping[str, Sequence[tuple[int, Job]]], n: int) -> tuple[list[Draft], list[float]]:
        drafts, spent = super().draft(jobs, n)
        for name, mine in jobs.items():
            for i, _ in mine:
                spent[i] = seconds(self.costs, name, len(drafts[i].tokens), depth_of(drafts[i]))
        self.made = drafts
        return drafts, spent

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None:
        before = self.graded_seconds
        made = super().grade(name, jobs)
        self.graded_seconds = before + self.costs.of(name.partition("?")[0]).grade
        return made

    def guess(self, *args: Any) -> Any:
        before = self.graded_seconds
        made = super().guess(*args)
        self.graded_seconds = before
        return made


def play(args: Any, policy: str, costs: Costs) -> list[tuple[int, float, Counts]]:
    """Decode all prompts one after the other; tokens, seconds and rounds of each."""
    head = args.head
    names = [head, *args.beside]
    decoder = Decoder.from_pretrained(
        args.target, drafters=names, dtype="float32", policy="none", compile="off"
    )
    chosen = method(policy, names)
    drafters = dict(decoder.loop.pool.drafters)
    pool = PricedPool(drafters, vocab_size=decoder.loop.target.vocab_size)
    pool.costs = costs
    clock: Any = PricedClock(costs, pool, 0.0)  # type: ignore[arg-type]
    loop = Loop(decoder.loop.target, pool, chosen.policy, chosen.recorder, clock=clock)
    texts = []
    for question in spec_bench()[:: args.every]:
        prompt, rows, whole = decoder.encode(question.text), list[tuple[int, int, int]](), 0.0
        for round in loop.run([prompt], Sampling(max_new_tokens=args.tokens, eos=decoder.eos)):
            rows.append((round.drafted, depth_of(pool.made[0]) if round.drafted else 0, len(round.tokens)))
            whole += round.seconds.total
        texts.append((sum(row[2] for row in rows), whole, Counts(policy, [rows])))
    return texts


def interval(some: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]]) -> str:
    """The ratio of two speeds, and its middle 95 % over resampled prompts."""
    rng, n = np.random.default_rng(0), len(some)
    a, b = np.array([pair[:2] for pair in some]), np.array([pair[:2] for pair in other])
    ratios = []
    for pick in [np.arange(n), *rng.integers(0, n, (2000, n))]:
        (x, s), (y, t) = a[pick].sum(0), b[pick].sum(0)
        ratios.append(x / s * t / y)
    low, high = np.quantile(ratios[1:], (0.025, 0.975))
    return f"{ratios[0]:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Count all fixed settings and let `auto` play at all prices, then print a table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--head", default="eagle:zoo:smollm2-eagle3")
    parser.add_argument("--beside", type=listed, default=[], help="further drafters of `auto`")
    parser.add_argument("--costs", type=listed, required=True, help="files or names of profiles")
    parser.add_argument("--lengths", type=numbers, default=[1, 2, 3, 4, 6])
    parser.add_argument("--widths", type=numbers, default=[1, 2, 4])
    parser.add_argument("--every", type=int, default=40, help="every so many prompts of Spec-Bench")
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    tables, head = [read_costs(name) for name in args.costs], args.head
    rows = []
    for width in args.widths:
        for length in args.lengths:
            one = vars(args) | {"head": head if width == 1 else f"{head}?width={width}", "beside": []}
            policy = f"static?length={length}"
            texts = [counts.texts[0] for *_, counts in play(type(args)(**one), policy, tables[0])]
            rows.append(Counts(f"{length} deep, {width} wide", texts))
    print("| draft | nodes a round | tokens a round |", *(f"{name} |" for name in args.costs))
    print("|---" * (3 + len(tables)) + "|")
    for row in rows:
        nodes, tokens = (fmean(one[k] for text in row.texts for one in text) for k in (0, 2))
        cells = []
        for costs in tables:
            written, spent = np.array(row.totals(costs, head)).sum(0)
            cells.append(f"{written / spent * costs.target(1):.3f}")
        print(f"| {row.name} | {nodes:.1f} | {tokens:.3f} |", " | ".join(cells), "|", flush=True)
    for name, costs in zip(args.costs, tables, strict=True):
        chains, wide = (play(args, policy, costs) for policy in ("auto?width=1", "auto"))
        speeds = [
            sum(t for t, *_ in one) / sum(s for _, s, _ in one) * costs.target(1) for one in (chains, wide)
        ]
        gain = interval([one[:2] for one in wide], [one[:2] for one in chains])
        print(
            f"{name}: auto {speeds[0]:.3f} of plain without trees, {speeds[1]:.3f} with, {gain}", flush=True
        )


if __name__ == "__main__":
    start(main)

"""What trees of a head's drafts, and siblings of a model's, are worth: counted on a model, priced by tables.

    python -m studies.speed.trees --costs COSTS[,COSTS...] [--head eagle:zoo:smollm2-eagle3] [--beside ngram]
    python -m studies.speed.trees --costs COSTS --siblings --target zoo:target --head zoo:general --batch 4

Chains and EAGLE-2's trees of at most `length * width` nodes, with `--siblings` chains with so many beside
each token, and `auto` with trees and siblings and without, which learns the prices as it goes, on the same
Spec-Bench prompts. The model runs, and a round takes the
seconds of the table: of a pass over its nodes and one token, and of the head's steps, one for each depth,
whose further nodes cost what reading takes; siblings take none. In a batch all rows of a pass are as long as
the longest, and the steps are those of the deepest draft. The table has the tokens per second over those of
plain decoding, and the speed of `auto` with trees over that without with its middle 95 % over resampled
prompts, or batches of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
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
from draftwise.measure.trace.replay import PricedClock, find_depths
from draftwise.policies.catalogue import method
from studies.common.command import command, listed, numbers, start
from studies.common.tables import Real, cell, heading, middle, resampled, row

PAGE = "docs/explanation/auto-measured.md"


class Step(NamedTuple):
    """One round of a batch: nodes and depth of each draft, the tokens written, and the seconds."""

    drafts: list[tuple[int, int]]
    tokens: int
    seconds: float

    def priced(self, costs: Costs, head: str, *, siblings: bool) -> float:
        """Seconds by another table, where the drafts do not depend on it."""
        return call(costs, head, self.drafts, siblings=siblings) + costs.target(size(self.drafts))


def call(costs: Costs, drafter: str, drafts: Sequence[tuple[int, int]], *, siblings: bool) -> float:
    """Seconds of a drafter's call: a step for each depth, which reads the other nodes beside the first."""
    of = costs.of(drafter.partition("?")[0])
    deepest, more = max(depth for _, depth in drafts), sum(nodes - depth for nodes, depth in drafts)
    return of.draft(deepest) + (0.0 if siblings else more * of.catch_up) if deepest else 0.0


def size(drafts: Sequence[tuple[int, int]]) -> int:
    """The tokens of a pass, all of whose rows are as long as the longest."""
    return len(drafts) * (1 + max(nodes for nodes, _ in drafts))


class PricedPool(DrafterPool):
    """Drafters whose calls take the seconds of a table."""

    costs: Costs
    siblings: bool
    latest: Sequence[tuple[int, int]]  # nodes and depth of each draft of this round

    def draft(self, jobs: Mapping[str, Sequence[tuple[int, Job]]], n: int) -> tuple[list[Draft], list[float]]:
        drafts, spent = super().draft(jobs, n)
        self.latest = [(len(draft.tokens), max(find_depths(draft.parents), default=0)) for draft in drafts]
        for name, mine in jobs.items():
            whole = call(self.costs, name, [self.latest[i] for i, _ in mine], siblings=self.siblings)
            for i, _ in mine:
                spent[i] = whole / len(mine)
        return drafts, spent

    def grade(self, name: str, jobs: Sequence[GradeJob]) -> list[list[Grade]] | None:
        before = self.graded_seconds
        grades = super().grade(name, jobs)
        self.graded_seconds = before + self.costs.of(name.partition("?")[0]).grade
        return grades

    def guess(self, *args: Any) -> Any:
        before = self.graded_seconds
        tokens = super().guess(*args)
        self.graded_seconds = before
        return tokens


class PaddedClock(PricedClock):
    """A clock whose passes read all rows up to the longest."""

    pool: PricedPool

    def target(self, seconds: float, tokens: int) -> float:
        """Seconds of the pass of this round."""
        return self.costs.target(size(self.pool.latest))


def play(args: Any, policy: str, costs: Costs, width: int = 1) -> list[list[Step]]:
    """Decode all prompts, so many at once; the rounds of each batch."""
    names = [args.head, *args.beside]
    decoder = Decoder.from_pretrained(
        args.target, drafters=names, dtype="float32", policy="none", compile="off"
    )
    chosen = method(policy, names)
    if args.siblings and width > 1:
        chosen.policy.arms = tuple(replace(arm, width=width) for arm in chosen.policy.arms)
    drafters = dict(decoder.loop.pool.drafters)
    target: Any = decoder.loop.target
    pool = PricedPool(drafters, vocab_size=target.vocab_size, can_read_trees=target.can_read_trees)
    pool.costs, pool.siblings = costs, args.siblings
    clock = PaddedClock(costs, pool, 0.0)
    loop = Loop(target, pool, chosen.policy, chosen.recorder, clock=clock)
    sampling = Sampling(
        temperature=args.temperature, seed=args.seed, max_new_tokens=args.tokens, eos=decoder.eos
    )
    prompts = [decoder.encode(question.text) for question in spec_bench()[:: args.every]]
    batches: list[list[Step]] = []
    for first in range(0, len(prompts), args.batch):
        for prompt in prompts[first : first + args.batch]:
            loop.add(prompt, sampling)
        batches.append([])
        while loop.open:
            rounds = loop.step()
            tokens, spent = sum(len(one.tokens) for one in rounds), sum(one.seconds.total for one in rounds)
            batches[-1].append(Step(list(pool.latest), tokens, spent))
    return batches


def speeds(batches: Sequence[Sequence[Step]]) -> Real:
    """Tokens per second of all prompts together, then of each bootstrap sample of their batches."""
    figures = np.array(
        [(sum(one.tokens for one in steps), sum(one.seconds for one in steps)) for steps in batches]
    )
    tokens, total = np.vstack([figures.sum(0), resampled(len(batches)) @ figures]).T
    return np.asarray(tokens / total)


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
    parser.add_argument("--batch", type=int, default=1, help="prompts at once")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--siblings", action="store_true", help="fixed drafts: chains with siblings, no trees"
    )
    args = parser.parse_args()
    tables, head = [read_costs(name) for name in args.costs], args.head
    plain = [speeds(play(args, "none", costs))[0] for costs in tables]
    print(heading("draft", "nodes a round", "tokens a round", *args.costs))
    for width, length in product(args.widths, args.lengths):
        name = head if width == 1 or args.siblings else f"{head}?width={width}"
        one = type(args)(**vars(args) | {"head": name, "beside": []})
        steps = [step for steps in play(one, f"static?length={length}", tables[0], width) for step in steps]
        rounds = sum(len(step.drafts) for step in steps)
        nodes = sum(sum(nodes for nodes, _ in step.drafts) for step in steps) / rounds
        written = sum(step.tokens for step in steps)
        spent = [sum(step.priced(costs, head, siblings=args.siblings) for step in steps) for costs in tables]
        cells = [f"{written / s / one:.3f}" for s, one in zip(spent, plain, strict=True)]
        cells = [f"{nodes:.1f}", f"{written / rounds:.3f}", *cells]
        print(row(f"{length} deep, {width} wide", *cells), flush=True)
    for name, costs, one in zip(args.costs, tables, plain, strict=True):
        chains, trees = (speeds(play(args, policy, costs)) for policy in ("auto?width=1", "auto"))
        less, more = (f"{speed[0] / one:.3f}" for speed in (chains, trees))
        gain = cell((trees / chains)[0], *middle((trees / chains)[1:]))
        print(f"{name}: auto {less} of plain without trees, {more} with, {gain}", flush=True)


if __name__ == "__main__":
    start(main)

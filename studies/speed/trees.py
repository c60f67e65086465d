"""What trees of a head's drafts, and siblings of a model's, are worth: counted on a model, priced by tables.

    python -m studies.speed.trees --costs COSTS[,COSTS...] [--head eagle:zoo:smollm2-eagle3] [--beside ngram]

Chains and EAGLE-2's trees of at most `length * width` nodes, with `--siblings` chains with so many beside
each token, and `auto` with trees and siblings and without, which learns the prices as it goes, on the same
Spec-Bench prompts. The model runs, and a round takes the
seconds of the table: of a pass over its nodes and one token, and of the head's steps, one for each depth,
whose further nodes cost what reading takes. The table has the tokens per second over those of plain decoding;
and the speed of `auto` with trees over that without has its middle 95 % over resampled prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from studies.common.tables import Real, cell, heading, middle, resampled, row

PAGE = "docs/explanation/auto-measured.md"


class Text(NamedTuple):
    """The answer to one prompt: seconds, and drafted nodes, their depth and written tokens of each round."""

    seconds: float
    rounds: list[tuple[int, int, int]]

    @property
    def tokens(self) -> int:
        """Its length."""
        return sum(tokens for *_, tokens in self.rounds)

    def priced(self, costs: Costs, head: str) -> float:
        """Seconds by another table, where the drafts do not depend on it."""
        pairs = [(nodes, depth) for nodes, depth, _ in self.rounds]
        return sum(seconds(costs, head, nodes, depth) + costs.target(1 + nodes) for nodes, depth in pairs)


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
        self.latest = drafts
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


def play(args: Any, policy: str, costs: Costs, width: int = 1) -> list[Text]:
    """Decode all prompts one after the other."""
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
    pool.costs = costs
    clock = PricedClock(costs, pool, 0.0)
    loop = Loop(target, pool, chosen.policy, chosen.recorder, clock=clock)
    texts = []
    for question in spec_bench()[:: args.every]:
        prompt, rows, whole = decoder.encode(question.text), list[tuple[int, int, int]](), 0.0
        for round in loop.run(
            [prompt],
            Sampling(
                temperature=args.temperature, seed=args.seed, max_new_tokens=args.tokens, eos=decoder.eos
            ),
        ):
            rows.append((round.drafted, depth_of(pool.latest[0]) if round.drafted else 0, len(round.tokens)))
            whole += round.seconds.total
        texts.append(Text(whole, rows))
    return texts


def speeds(texts: Sequence[Text]) -> Real:
    """Tokens per second of all prompts together, then of each bootstrap sample of them."""
    figures = np.array([(text.tokens, text.seconds) for text in texts])
    tokens, total = np.vstack([figures.sum(0), resampled(len(texts)) @ figures]).T
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
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--siblings", action="store_true", help="fixed drafts: chains with siblings, no trees"
    )
    args = parser.parse_args()
    tables, head = [read_costs(name) for name in args.costs], args.head
    print(heading("draft", "nodes a round", "tokens a round", *args.costs))
    for length, width in ((length, width) for width in args.widths for length in args.lengths):
        name = head if width == 1 or args.siblings else f"{head}?width={width}"
        one = type(args)(**vars(args) | {"head": name, "beside": []})
        texts = play(one, f"static?length={length}", tables[0], width)
        rounds = [one for text in texts for one in text.rounds]
        nodes, tokens = fmean(one[0] for one in rounds), fmean(one[2] for one in rounds)
        written = sum(text.tokens for text in texts)
        spent = [sum(text.priced(costs, head) for text in texts) for costs in tables]
        cells = [f"{written / s * costs.target(1):.3f}" for s, costs in zip(spent, tables, strict=True)]
        print(row(f"{length} deep, {width} wide", f"{nodes:.1f}", f"{tokens:.3f}", *cells), flush=True)
    for name, costs in zip(args.costs, tables, strict=True):
        chains, trees = (speeds(play(args, policy, costs)) for policy in ("auto?width=1", "auto"))
        less, more = (f"{speed[0] * costs.target(1):.3f}" for speed in (chains, trees))
        gain = cell((trees / chains)[0], *middle((trees / chains)[1:]))
        print(f"{name}: auto {less} of plain without trees, {more} with, {gain}", flush=True)


if __name__ == "__main__":
    start(main)

"""What a tree of a head's drafts is worth against a chain, counted on a model and priced by tables of costs.

    python -m studies.speed.trees --costs COSTS[,COSTS...] [--head eagle:zoo:smollm2-eagle3] [--widths 1,2,4]

EAGLE-2's tree of at most `length * width` nodes, and chains, on the same Spec-Bench prompts, greedy. Counted
are tokens and nodes of each round, so any machine will do. A round takes the seconds of a pass over its nodes
and one token, and of the head's steps, one for each depth, whose further tokens cost what reading takes. The
table has the tokens per second over those of plain decoding, and how the best tree compares with the best
chain.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from draftwise import Decoder, Sampling
from draftwise.data import spec_bench
from draftwise.measure.trace import read_costs
from studies.common.command import command, listed, numbers, start

PAGE = "docs/explanation/auto-measured.md"


class Counts(NamedTuple):
    """The rounds of one setting: drafted nodes and written tokens of each, and the longest draft."""

    length: int
    width: int
    rounds: list[tuple[int, int]]

    @property
    def name(self) -> str:
        """The setting in words."""
        return f"{self.length} deep" if self.width == 1 else f"{self.length} deep, {self.width} wide"


def count(args: Any, length: int, width: int) -> Counts:
    """Decode all prompts with one setting."""
    head = args.head if width == 1 else f"{args.head}?width={width}"
    policy = f"static?length={length}&drafter={head.replace('&', '%26')}"
    decoder = Decoder.from_pretrained(args.target, drafters=[head], policy=policy, dtype="float32")
    prompts = [decoder.encode(question.text) for question in spec_bench()[:: args.every]]
    rounds = decoder.loop.run(prompts, Sampling(max_new_tokens=args.tokens, eos=decoder.eos))
    return Counts(length, width, [(round.drafted, len(round.tokens)) for round in rounds])


def speed(counts: Counts, costs: Any, head: str) -> float:
    """Tokens per second over those of plain decoding."""
    drafter = costs.of(head)
    wide = max(0, counts.width - 1) * drafter.catch_up
    draft = drafter.first + wide + (counts.length - 1) * (drafter.step + wide)
    seconds = sum(costs.target(1 + nodes) + draft * (nodes > 0) for nodes, _ in counts.rounds)
    return float(sum(tokens for _, tokens in counts.rounds) / seconds * costs.target(1))


def main() -> None:
    """Count all settings, then print a table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--head", default="eagle:zoo:smollm2-eagle3")
    parser.add_argument("--costs", type=listed, required=True, help="files or names of profiles")
    parser.add_argument("--lengths", type=numbers, default=[1, 2, 3, 4, 6])
    parser.add_argument("--widths", type=numbers, default=[1, 2, 4])
    parser.add_argument("--every", type=int, default=40, help="every so many prompts of Spec-Bench")
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    rows = [count(args, length, width) for width in args.widths for length in args.lengths]
    tables = [read_costs(name) for name in args.costs]
    print("| draft | nodes a round | tokens a round |", *(f"{name} |" for name in args.costs))
    print("|---" * (3 + len(tables)) + "|")
    for row in rows:
        nodes, tokens = (fmean(pair[k] for pair in row.rounds) for k in (0, 1))
        cells = [f"{speed(row, costs, args.head):.3f}" for costs in tables]
        print(f"| {row.name} | {nodes:.1f} | {tokens:.3f} |", " | ".join(cells), "|", flush=True)
    for name, costs in zip(args.costs, tables, strict=True):
        chains = [speed(row, costs, args.head) for row in rows if row.width == 1]
        trees = [speed(row, costs, args.head) for row in rows if row.width > 1]
        print(f"{name}: the best tree is at {np.max(trees) / np.max(chains):.3f} of the best chain")


if __name__ == "__main__":
    start(main)

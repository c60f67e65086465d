"""The best draft length by batch size: BanditSpec's Figure 1 (arXiv 2505.15141), by replay.

    python -m studies.speed.lengths --trace TRACE --costs llama-8b-eagle --knee 153

A forward pass over few tokens is memory-bound: it takes the time to read the weights. From `--knee` tokens on
it is compute-bound: its time is proportional to the tokens. In a batch of B requests that all draft equally
many tokens, each request is charged its share of such passes, those of the drafter included. 153 is the knee
of Llama 3.1 8B in float16 on an A100: 16.1 GB at 2,039 GB/s are 7.9 ms, and 16.1 GFLOP a token at 312 TFLOP/s
are 51.5 us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from draftwise.measure.trace import Costs, Replay, Trace, read_costs
from draftwise.measure.trace.costs import DrafterCosts
from draftwise.measure.trace.fixed import NONE, fixed
from draftwise.measure.trace.stage import Stage
from draftwise.policies.catalogue import method
from studies.common.command import command, numbers, start
from studies.common.paired import Real, cell, ratio

PAGE = "docs/explanation/findings.md"

BATCHES = (1, 16, 32, 48, 64, 96, 128, 192)
LENGTHS = (0, 1, 2, 3, 4)
ARMS = "arms=lengths&lengths=" + ",".join(map(str, LENGTHS))
POLICIES = {
    "rate": f"ucbspec?{ARMS}&reward=rate",
    "rate, learned once": f"ucbspec?{ARMS}&reward=rate&per_query=false",
    "accepted": f"ucbspec?{ARMS}&reward=accepted",
}


def shared(costs: Costs, drafter: str, batch: int, knee: float) -> Costs:
    """What a request pays in a batch whose requests all draft as many tokens as it does."""
    alone, mine = costs.target(1), costs.of(drafter)

    def share(tokens: int) -> float:
        return max(1.0, tokens / knee) / batch

    # A step of the drafter reads one token a request; catching up and grading are left out.
    own = DrafterCosts(first=mine.first / batch, step=mine.step * share(batch))
    passes = tuple(alone * share(batch * n) for n in range(1, max(LENGTHS) + 2))
    return replace(costs, passes=passes, drafters={drafter: own}, others=own)


@dataclass(frozen=True)
class Played:
    """Seconds of a policy in each order with each text, and how often it drafted how many tokens."""

    seconds: Real
    drafted: Counter[int]


def played(trace: Trace, stages: Sequence[Stage], name: str, costs: Costs, orders: int) -> Played:
    """A policy in several orders of the texts, with a seed each."""
    seconds, drafted = np.zeros((orders, len(stages))), Counter[int]()
    for order in range(orders):
        loop = Replay(trace, method(name, trace.drafters), costs, seed=order)
        places = list(range(len(stages)))
        Random(order).shuffle(places)
        for at in places:
            for round in loop.play(stages[at]):
                seconds[order, at] += round.seconds.total
                drafted[round.drafted] += 1
    return Played(seconds, drafted)


def lines(trace: Trace, costs: Costs, knee: float, batches: Sequence[int], orders: int) -> Iterator[str]:
    """One row a batch size: every length against none, then the policies against the best of them."""
    (drafter,) = trace.drafters
    stages = [Stage(recording) for recording in trace]
    lengths = " | ".join(f"length {n}" for n in LENGTHS[1:])
    yield (
        f"| batch | {lengths} | best | " + " | ".join(f"UCBSpec, {name}" for name in POLICIES) + " | plays |"
    )
    yield "|---" * (len(LENGTHS) + len(POLICIES) + 2) + "|"
    for batch in batches:
        now = shared(costs, drafter, batch, knee)
        found = [fixed(stage, now) for stage in stages]
        of = {n: np.array([one[(drafter, n) if n else NONE] for one in found]) for n in LENGTHS}
        best = min(of, key=lambda n: of[n].sum())
        cells = [cell(*ratio(of[n], of[0]), places=2) for n in LENGTHS[1:]]
        runs = {name: played(trace, stages, text, now, orders) for name, text in POLICIES.items()}
        cells += [str(best), *(cell(*ratio(run.seconds, of[best])) for run in runs.values())]
        shares = runs["rate, learned once"].drafted
        total = shares.total()
        cells.append(" ".join(f"{100 * shares[n] / total:.0f}" for n in LENGTHS) + " %")
        yield f"| {batch} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--trace", type=Path, required=True, help="a greedy trace of one drafter")
    parser.add_argument("--costs", default="llama-8b-eagle", help="what passes cost one request alone")
    parser.add_argument("--knee", type=float, default=153.0, help="tokens from which a pass takes longer")
    parser.add_argument("--batches", type=numbers, default=",".join(map(str, BATCHES)))
    parser.add_argument("--orders", type=int, default=5)
    args = parser.parse_args()
    trace = Trace(args.trace)
    if len(trace.drafters) != 1:
        parser.error(f"--trace {args.trace}: it has {len(trace.drafters)} drafters, and lengths are of one")
    print(f"{len(trace)} texts, {args.costs}, a knee at {args.knee:g} tokens\n")
    for line in lines(trace, read_costs(args.costs), args.knee, args.batches, args.orders):
        print(line, flush=True)


if __name__ == "__main__":
    start(main)

"""Rounds a second that a trace is replayed with, policy by policy, on one core.

python -m studies.microbench.replay_speed trace/ --policies ucb1,hedgespec
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from statistics import median
from time import process_time

from draftwise.measure.bench.run import policy_names
from draftwise.measure.trace import Replay, Trace, read_costs
from draftwise.measure.trace.stage import Stage
from draftwise.policies.catalogue import method

POLICIES = (
    "none,static-4,ucb1,ucb1?arms=drafters*lengths,metasd-ucb?reward=block-efficiency,ucbspec,exp3spec,"
    "tapout-seq-ucb1?length=16,tapout-seq-ts?length=16,tapout-token-ucb1?length=16,tapout-token-ts?length=16,"
    "linucb,hedgespec,hedgespec?every=16,draft-all,auto"
)


def rates(trace: Trace, name: str, stages: list[Stage], runs: int) -> list[float]:
    """Rounds per second of processor time, of each run."""
    found = []
    for _ in range(runs):
        loop = Replay(trace, method(name, trace.drafters), read_costs(str(trace.folder / "costs.json")))
        start = process_time()
        rounds = sum(1 for stage in stages for _ in loop.play(stage))
        found.append(rounds / (process_time() - start))
    return found


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    trace = Trace(options.trace)
    every = max(1, len(trace) // options.texts)
    stages = [Stage(recording) for recording in islice(trace, 0, None, every)]
    print("| policy | rounds a second | lowest to highest |\n|---|---|---|")
    for name in policy_names(options.policies):
        found = rates(trace, name, stages, options.runs)
        print(f"| `{name}` | {median(found):,.0f} | {min(found):,.0f} to {max(found):,.0f} |", flush=True)


if __name__ == "__main__":
    main()

"""Time outside the models' forwards, and where it goes: `zoo:target` drafted by `zoo:general`.

    python -m studies.microbench.overhead [--policy static-4] [--batches 1,8] [--new-tokens 96] [--repeat 5]

A forward is the call of the Transformers model alone. Everything else counts as outside: choosing, building
inputs and masks, reading logits, acceptance, caches' bookkeeping, learning, and this script's own loop.
"""

from __future__ import annotations

import argparse
import os
import sys
from time import perf_counter

from rich.console import Console
from rich.table import Table

from draftwise import Decoder, Sampling, Stats
from draftwise.data import spec_bench


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="static-4")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    decoder = Decoder.from_pretrained("zoo:target", drafters=["zoo:general", "ngram"], policy=options.policy)
    encoded = [decoder.encode(q.text) for q in spec_bench()[::20]]
    prompts = [ids for ids in encoded if len(ids) < 600]
    title = f"{options.policy}, {len(prompts)} prompts, {options.new_tokens} tokens; microseconds per round"
    phases = ("choose", "draft", "verify", "accept", "learn", "rest")
    table = Table("batch", "wall", *phases, "outside", "share", title=title)
    for batch in map(int, options.batches.split(",")):
        runs = [measure(decoder, prompts, options.new_tokens, batch) for _ in range(options.repeat + 1)][1:]
        runs.sort(key=lambda r: r["share"])
        middle, low, high = runs[len(runs) // 2], runs[0]["share"], runs[-1]["share"]
        cells = [f"{middle[key]:.0f}" for key in ("wall", *phases, "outside")]
        table.add_row(str(batch), *cells, f"{middle['share']:.1%} ({low:.1%} to {high:.1%})")
    Console(width=130).print(table)
    print(f"load {os.getloadavg()[0]:.2f}")
    return 0


def measure(decoder: Decoder, prompts: list[list[int]], n: int, batch: int) -> dict[str, float]:
    """One run over all prompts: microseconds per request and round, by phase, less the forwards' own."""
    target = decoder.loop.target.rows  # type: ignore[attr-defined]
    drafter = decoder.loop.team.drafters["zoo:general"].rows  # type: ignore[attr-defined]
    before = target.seconds, drafter.seconds
    start = perf_counter()
    rounds = list(decoder.loop.run(prompts, Sampling(max_new_tokens=n), batch=batch))
    wall = perf_counter() - start
    verify, draft = target.seconds - before[0], drafter.seconds - before[1]
    spent = Stats.of(rounds).seconds_by_phase
    each = 1e6 / len(rounds)
    out = {phase: seconds * each for phase, seconds in spent.items()}
    out["verify"] -= verify * each
    out["draft"] -= draft * each
    return out | {
        "wall": wall * each,
        "rest": (wall - sum(spent.values())) * each,
        "outside": (wall - verify - draft) * each,
        "share": 1 - (verify + draft) / wall,
    }


if __name__ == "__main__":
    sys.exit(main())

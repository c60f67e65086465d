"""`auto` in batches against the best fixed draft length in hindsight, in worlds whose seconds are counted.

    python -m studies.speed.batches [--batches 8,32] [--prices knee,line] [--texts 5] [--taught]

Scripted texts and one drafter, which is right with a given chance at every token, or in spans of 25 tokens
(95 in 100 in every fourth span, else 10). Greedy, or drawn at temperature 1: there the drafter draws its
tokens, and its confidence is always the same. A pass takes 10 ms up to 64 tokens and in proportion beyond
(`knee`), or 18 ms and 0.5 ms a token (`line`). Rows have the tokens that they drafted (ragged), or as many as
the longest (padded). Speeds count from the first pass, with nothing learned unless `--taught`, until no more
texts wait: the batch is full all the time. Each cell has the speed of `auto` over that of the best fixed
length, and that length; 0 is no draft. Lengths are tried from 0 on until two in a row are slower than the
best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

import pytest

from draftwise.policies.catalogue import Method, method
from studies.common.command import command, listed, numbers, start
from studies.common.tables import heading, row
from tests.policies.auto import drawn, script
from tests.policies.auto.script import Prices, Right, always

PAGE = "docs/explanation/auto-measured.md"
NAME = "drafter"


def spans(text: int, at: int, rng: object) -> float:
    """Right in every fourth span of 25 tokens, at other places in each text."""
    return 0.95 if (at // 25 + text) % 4 == 0 else 0.1


CHANCES: Mapping[str, Right] = {
    **{f"{chance:g}": always(chance) for chance in (0.25, 0.5, 0.75, 0.9)},
    "in spans": spans,
}
PRICES = {
    "knee": Prices(),
    "line": Prices(target=lambda tokens: 18e-3 + 0.5e-3 * tokens, token=0.2e-3),
}
WORLDS = {"greedy": script.Stage, "drawn": drawn.Stage}


def speed(stage: script.Stage, policy: str | Method, batch: int) -> float:
    """Tokens per second as long as the batch is full."""
    written, seconds, done = Counter[int](), 0.0, 0
    for one in stage.run(policy, batch=batch)[2]:
        seconds += one.seconds.total
        written[one.request] += len(one.tokens)
        done += written[one.request] == stage.tokens
        if done > stage.texts - batch:
            break
    return written.total() / seconds


def best_fixed(stage: script.Stage, batch: int) -> tuple[float, int]:
    """The speed of the best fixed length, and that length."""
    best, at, length = speed(stage, "none", batch), 0, 0
    while length - at < 2:
        length += 1
        found = speed(stage, f"static?length={length}&drafter={NAME}", batch)
        if found > best:
            best, at = found, length
    return best, at


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--batches", type=numbers, default=[8, 32], help="requests at once")
    parser.add_argument("--prices", type=listed, default=list(PRICES), help="knee, line or both")
    parser.add_argument("--texts", type=int, default=5, help="texts for each row of a batch")
    parser.add_argument("--taught", action="store_true", help="auto has written as many other texts before")
    args = parser.parse_args()
    print(heading("passes", "batch", "rows", "texts", *CHANCES))
    with pytest.MonkeyPatch.context() as patch:
        for name, batch, padded, kind in product(args.prices, args.batches, (False, True), WORLDS):
            cells = []
            for right in CHANCES.values():
                more = {"texts": args.texts * batch, "tokens": 200, "padded": padded}
                models, prices = {NAME: right}, PRICES[name]
                stage, lessons = (WORLDS[kind](patch, models, prices, seed=s, **more) for s in (0, 1))
                best, length = best_fixed(stage, batch)
                auto = method("auto", [NAME])
                if args.taught:
                    speed(lessons, auto, batch)
                cells.append(f"{speed(stage, auto, batch) / best:.3f} ({length})")
            print(row(name, batch, "padded" if padded else "ragged", kind, *cells), flush=True)


if __name__ == "__main__":
    start(main)

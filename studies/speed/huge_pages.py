"""Plain decoding with its weights in huge pages and without, in processes of their own, in turn.

    python -m studies.speed.huge_pages [--target zoo:smollm2] [--dtypes float32,bfloat16] [--runs 5]

A process without them forbids them to itself (Linux's PR_SET_THP_DISABLE) before it loads anything.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from statistics import median
from time import perf_counter
from typing import Any

from draftwise import Decoder
from draftwise.data import spec_bench
from studies.common.command import again, command, listed, start

PAGE = "docs/explanation/pass-costs.md"
FORBID = 41  # PR_SET_THP_DISABLE
WAYS = ("without", "with")
NEW = 96


def main() -> None:
    """Run both kinds in turn; print tokens per second of each, and the median and range of their ratios."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--dtypes", type=listed, default=["float32", "bfloat16"])
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind")
    parser.add_argument("--texts", type=int, default=6, help="of 96 tokens, in each process")
    parser.add_argument("--child", choices=WAYS, help="measure here")
    parser.add_argument("--dtype", default="", help="of the child")
    args = parser.parse_args()
    if args.child:
        print(measured(args))
        return
    for dtype in args.dtypes:
        runs: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(args.runs):
            for way in WAYS:
                line = again("--child", way, "--dtype", dtype)
                runs[way].append(float(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout))
        ratios = sorted(after / before for before, after in zip(*runs.values(), strict=True))
        spread = [round(ratio, 2) for ratio in (median(ratios), ratios[0], ratios[-1])]
        print(json.dumps({"dtype": dtype} | runs | {"ratio": spread}), flush=True)


def measured(args: Any) -> float:
    """Tokens per second of plain decoding in this process, of the median text."""
    if args.child == "without" and ctypes.CDLL(None).prctl(FORBID, 1, 0, 0, 0):
        sys.exit("this system cannot forbid huge pages to a process")
    decoder = Decoder.from_pretrained(
        args.target, drafters="ngram", policy="none", dtype=args.dtype, compile="on"
    )
    speeds = []
    for question in spec_bench()[: args.texts]:
        began = perf_counter()
        result = decoder.generate(question.text, max_new_tokens=NEW)
        speeds.append(len(result.token_ids) / (perf_counter() - began))
    return round(median(speeds), 1)


if __name__ == "__main__":
    start(main)

"""Plain decoding with its weights in huge pages and without, in processes of their own, in turn.

    python -m studies.speed.huge_pages [--target zoo:smollm2] [--dtypes float32,bfloat16] [--runs 5]

A process without them forbids them to itself (Linux's PR_SET_THP_DISABLE) before it loads anything. Each also
says how fast one core reads an array of NumPy, which asks for huge pages for its large arrays.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from draftwise import Decoder
from draftwise.data import spec_bench
from studies.common.command import again, command, listed, start

PAGE = "docs/explanation/pass-costs.md"
FORBID = 41  # PR_SET_THP_DISABLE
WAYS = ("without", "with")
BYTES, READS = 400 << 20, 12
NEW = 96


def main() -> None:
    """Run both kinds of processes in turn; print tokens per second of each run, and the ratios of pairs."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--dtypes", type=listed, default=["float32", "bfloat16"])
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind")
    parser.add_argument("--texts", type=int, default=6, help="of 96 tokens, in each process")
    parser.add_argument("--child", choices=WAYS, help="measure here, and print JSON")
    parser.add_argument("--dtype", default="", help="of the child")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(args)))
        return
    for dtype in args.dtypes:
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(args.runs):
            for way in WAYS:
                line = subprocess.run(
                    again("--child", way, "--dtype", dtype), stdout=subprocess.PIPE, check=True
                )
                runs[way].append(json.loads(line.stdout.splitlines()[-1]))
        for what in ("tokens/s", "GB/s"):
            values = {way: [round(run[what], 1) for run in runs[way]] for way in WAYS}
            ratios = sorted(b / a for a, b in zip(*values.values(), strict=True))
            spread = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            print(json.dumps({"dtype": dtype, "what": what} | values | {"ratio": spread}), flush=True)


def measured(args: Any) -> dict[str, float]:
    """Plain decoding of the median text, and reading of plain memory, in this process."""
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
    return {"tokens/s": median(speeds), "GB/s": reading()}


def reading() -> float:
    """Gigabytes per second that one core reads of new memory."""
    memory = np.empty(BYTES // 4, np.float32)
    memory[:] = 1.0
    seconds = []
    for _ in range(READS):
        began = perf_counter()
        memory.sum()
        seconds.append(perf_counter() - began)
    return BYTES / median(seconds) / 1e9


if __name__ == "__main__":
    start(main)

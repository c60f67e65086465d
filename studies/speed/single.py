"""Passes of one token in half precision: through the graph for any number of tokens, and through their own.

    python -m studies.speed.single

The bundled target in bfloat16, compiled first if it is not. Both graphs are timed in turn in one process,
after texts of several lengths.
"""

from __future__ import annotations

import json
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch

from draftwise.build import build_target
from draftwise.errors import UserError
from studies.common.command import command, numbers, start

PAGE = "docs/how-to/compile.md"
PIECE = 96  # tokens of a text that are read at once


def main() -> None:
    """Measure, and print one line of JSON for each length."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--contexts", type=numbers, default=[50, 400, 1200], help="tokens before the pass")
    parser.add_argument("--passes", type=int, default=200, help="of each graph")
    args = parser.parse_args()
    loaded: Any = {"dtype": "bfloat16", "device": "cpu", "trust_remote_code": False}
    target, *_ = build_target(args.target, None, pack="auto", compile="on", device_map=None, **loaded)
    rows = getattr(target, "rows", None)
    graph = getattr(rows, "graph", None)
    if rows is None or graph is None:
        raise UserError(f"{args.target} cannot be compiled here")
    with torch.inference_mode():
        for context in args.contexts:
            seconds: dict[str, list[float]] = {way: [] for way in graph.runs}
            rows.open(0)
            for _ in range(0, context, PIECE):
                rows.feed(0, [[7] * min(PIECE, context - rows.held[0])], 1)
            for _ in range(args.passes):
                for way, run in graph.runs.items():
                    graph.single = run
                    rows.held[0] = context
                    began = perf_counter()
                    rows.feed(0, [[7]], 1)
                    seconds[way].append(1e3 * (perf_counter() - began))
            rows.close(0)
            parts = {way: [round(x, 2) for x in quantiles(times, n=4)] for way, times in seconds.items()}
            print(json.dumps({"context": context} | {f"{way}, ms": part for way, part in parts.items()}))


if __name__ == "__main__":
    start(main)

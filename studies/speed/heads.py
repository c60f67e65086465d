"""Passes of models whose heads share keys, with Transformers' attention and with ours.

    python -m studies.speed.heads [CASE ...] [--widths 1,2,5,9,17] [--contexts 50,384,1500]

Each case is a shape and a precision, as qwen3-0.6b.bfloat16, with random weights. Eager passes with either
attention are timed in turn in one process, after texts of several lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch

from draftwise.errors import UserError
from draftwise.models import runner
from draftwise.models.attention import shared_heads
from draftwise.models.weights.packed import arrange
from draftwise.targets.hf import HFTarget
from studies.common.command import command, numbers, start
from studies.speed.shapes.cases import PRECISIONS
from studies.speed.shapes.models import SHAPES, model

PAGE = "docs/explanation/pass-costs.md"
CASES = [f"{shape}.{precision}" for shape in ("qwen3-0.6b", "llama-3.2-1b") for precision in PRECISIONS]
PIECE = 96  # tokens of a text that are read at once
WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {"own": nullcontext, "ours": shared_heads}


def main() -> None:
    """Measure, and print one line of JSON for each case, length and width."""
    parser = command(__doc__, PAGE)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--widths", type=numbers, default=[1, 2, 5, 9, 17], help="tokens of a pass")
    parser.add_argument("--contexts", type=numbers, default=[50, 384, 1500], help="tokens before it")
    parser.add_argument("--passes", type=int, default=9, help="of each attention and width")
    args = parser.parse_args()
    for case in args.cases:
        shape, _, precision = case.rpartition(".")
        if shape not in SHAPES or precision not in PRECISIONS:
            raise UserError(f"case {case!r}: choose from {', '.join(CASES)}")
        built = model(SHAPES[shape], PRECISIONS[precision])
        arrange(built, "auto")
        for line in measured(HFTarget(built, probe=False).rows, args):
            print(json.dumps({"case": case} | line), flush=True)


@torch.inference_mode()
def measured(rows: Any, args: Any) -> list[dict[str, Any]]:
    """Milliseconds of a pass with either attention; their ratio in turn, and its quartiles."""
    lines: list[dict[str, Any]] = []
    for context in args.contexts:
        rows.open(0)
        for _ in range(0, context, PIECE):
            rows.feed(0, [[7] * min(PIECE, context - rows.held[0])], 1)
        for width in args.widths:
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(args.passes):
                for way, within in WAYS.items():
                    vars(runner)["shared_heads"] = within
                    rows.held[0] = context
                    began = perf_counter()
                    rows.feed(0, [[7] * width], width)
                    seconds[way].append(1e3 * (perf_counter() - began))
            ratios = [ours / own for own, ours in zip(seconds["own"], seconds["ours"], strict=True)]
            low, middle, high = (round(x, 2) for x in quantiles(ratios, n=4))
            said = {f"{way}, ms": round(median(times), 1) for way, times in seconds.items()}
            lines.append({"context": context, "width": width} | said | {"ratio": [middle, low, high]})
        rows.close(0)
    return lines


if __name__ == "__main__":
    start(main)

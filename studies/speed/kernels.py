"""Compiled passes with our kernels and without them, in turn.

    python -m studies.speed.kernels [CASE ...] [--widths 1,5,9,17,33] [--contexts 50,384,1500]

Each case is a shape and a precision, as bundled.float32. Two models with the same weights are packed and
compiled: one as it is loaded, in the fastest of all layouts and with the faster attention, the other without
the layout of our kernel and with PyTorch's attention. Passes of both are timed in turn in one process. In the
precision `short` weights in float32 have values of bfloat16, in `4-bit` those of quantised weights, and the
other model lacks only the layouts that make use of this.
"""

from __future__ import annotations

import json
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
from torch import nn

from draftwise.errors import UserError
from draftwise.models.compiled import blueprint
from draftwise.models.load import load_model
from draftwise.models.native.kernels import rounded
from draftwise.models.runner import ModelRunner, PassInput
from draftwise.models.runner.executors.compile import compile_runner
from draftwise.models.weights.layouts import KERNELS, LAYOUTS, SHORT
from draftwise.models.weights.packed import arrange
from draftwise.targets.hf import HFTarget
from studies.common.command import command, numbers, start
from studies.common.shapes import SHAPES, model_of_shape

PAGE = "docs/explanation/pass-costs.md"
PRECISIONS = dict.fromkeys(("float32", "bfloat16", "short", "4-bit"), torch.float32) | {
    "bfloat16": torch.bfloat16
}
FORMATS = {"short": torch.bfloat16, "4-bit": torch.int32}  # of weights in float32
CASES = [f"{shape}.{precision}" for shape in ("bundled", "Qwen3-0.6B") for precision in PRECISIONS]
PIECE = 192  # tokens of a text that are read at once


def main() -> None:
    """Measure, and print one line of JSON for each case, length and width."""
    parser = command(__doc__, PAGE)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--widths", type=numbers, default=[1, 5, 9, 17, 33], help="tokens of a pass")
    parser.add_argument("--contexts", type=numbers, default=[50, 384, 1500], help="tokens before it")
    parser.add_argument("--passes", type=int, default=15, help="of each kind and width")
    args = parser.parse_args()
    for case in args.cases:
        shape, _, precision = case.rpartition(".")
        if shape not in {"bundled", *SHAPES} or precision not in PRECISIONS:
            raise UserError(f"case {case!r}: choose from {', '.join(CASES)}")
        ways = {"without": rows(shape, precision, own=False), "with": rows(shape, precision, own=True)}
        for line in measured(ways, args):
            print(json.dumps({"case": case} | line), flush=True)


def rows(shape: str, precision: str, *, own: bool) -> ModelRunner:
    """The compiled rows of a model, with our kernels where they are faster, or without them."""
    kept, chosen = dict(LAYOUTS), vars(blueprint)["own_attention"]
    try:
        for name in () if own else SHORT if precision in FORMATS else KERNELS:
            del LAYOUTS[name]
        if not own and precision not in FORMATS:
            vars(blueprint)["own_attention"] = lambda *given, **named: False
        dtype = PRECISIONS[precision]
        built: Any = (
            load_model("zoo:target", dtype=dtype) if shape == "bundled" else model_of_shape(shape, dtype)
        )
        if precision in FORMATS:
            for layer in filter(lambda module: isinstance(module, nn.Linear), built.modules()):
                layer.weight.data = rounded(layer.weight, FORMATS[precision])
        arrange(built, "auto")
        target = HFTarget(built, probe=False)
        compile_runner(target, "on")
    finally:
        LAYOUTS.update(kept)
        vars(blueprint)["own_attention"] = chosen
    if target.runner.executor.kind != "compiled":
        raise UserError(f"{shape}.{precision} was not compiled")
    return target.runner


@torch.inference_mode()
def measured(ways: dict[str, ModelRunner], args: Any) -> list[dict[str, Any]]:
    """Milliseconds of a pass of either kind; their ratio in turn, and its quartiles."""
    lines: list[dict[str, Any]] = []
    for context in args.contexts:
        for runner in ways.values():
            runner.open(0)
            while runner.cached_lengths[0] < context:
                runner.forward(PassInput(0, [[7] * min(PIECE, context - runner.cached_lengths[0])], 1))
        for width in args.widths:
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(args.passes):
                for way, runner in ways.items():
                    runner.cached_lengths[0] = context
                    began = perf_counter()
                    runner.forward(PassInput(0, [[7] * width], width))
                    seconds[way].append(1e3 * (perf_counter() - began))
            ratios = [
                after / before for before, after in zip(seconds["without"], seconds["with"], strict=True)
            ]
            low, middle, high = (round(x, 2) for x in quantiles(ratios, n=4))
            said = {f"{way}, ms": round(median(times), 2) for way, times in seconds.items()}
            lines.append({"context": context, "width": width} | said | {"ratio": [middle, low, high]})
        for runner in ways.values():
            runner.close(0)
    return lines


if __name__ == "__main__":
    start(main)

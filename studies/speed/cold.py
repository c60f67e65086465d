"""A small drafter's compiled pass again and again, and after a pass of the target, which fills the cache.

    python -m studies.speed.cold

With all layers by our kernel, and with the large ones alone, as `SMALLEST` would have it for PyTorch's
libraries; each in a process of its own. Microseconds of one token: median and quartiles, in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from draftwise import Decoder
from draftwise.errors import UserError
from draftwise.models.narrow import narrow
from draftwise.models.weights import choice, packed
from studies.common.command import command, start

PAGE = "docs/explanation/pass-costs.md"
BEFORE, TURNS = 300, 300  # tokens of the text, and passes


def measured(asked: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds of the drafter's passes, by what ran before."""
    if asked["large"]:
        choice.OURS, packed.COPIED = 1, 0
    names = [asked["drafter"]]
    decoder = Decoder.from_pretrained(asked["target"], drafters=names, policy="none", compile="on")
    target: Any = decoder.loop.target
    drafter: Any = decoder.loop.pool.drafters[asked["drafter"]]
    if drafter.rows.graph is None:
        raise UserError(f"{asked['drafter']} is not compiled here: {drafter.rows.passes.state}")
    with torch.inference_mode():
        for rows in (target.rows, drafter.rows):
            rows.open(0)
            rows.feed(0, [list(range(5, 5 + BEFORE))], 1, slots=2 * BEFORE)

        def timed(rows: Any) -> float:
            rows.held[0] = BEFORE
            began = perf_counter()
            narrow(rows, 0, [5], 1)
            return perf_counter() - began

        again = [timed(drafter.rows) for _ in range(TURNS)]
        pairs = [(timed(target.rows), timed(drafter.rows)) for _ in range(TURNS)]
    return {"again and again": again, "after the target": [own for _, own in pairs]}


def child(asked: dict[str, Any]) -> None:
    """Print the times of one process as JSON."""
    print(json.dumps(measured(asked)))


def main() -> None:
    """Print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafter", default="zoo:general")
    parser.add_argument("--repeats", type=int, default=3, help="processes")
    asked = vars(parser.parse_args())
    ways = {"large layers alone": True, "all layers": False}
    found: dict[str, dict[str, list[float]]] = {label: {} for label in ways}
    for _ in range(asked["repeats"]):
        for label, large in ways.items():
            given = asked | {"large": large}
            code = f"import runpy; runpy.run_path({str(Path(__file__))!r})['child']({given!r})"
            ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
            for when, seconds in json.loads(ran.stdout.splitlines()[-1]).items():
                found[label].setdefault(when, []).extend(seconds)
    print("| by our kernel | again and again | after a pass of the target |\n" + "|---" * 3 + "|")
    for label, times in found.items():
        cells = []
        for seconds in times.values():
            low, middle, high = 1e6 * np.quantile(seconds, [0.25, 0.5, 0.75])
            cells.append(f"{middle:.0f} ({low:.0f} to {high:.0f})")
        print(f"| {label} | {' | '.join(cells)} |")


if __name__ == "__main__":
    start(main)

"""What a pass takes in a thread that did not load the model, while another one has OpenMP's threads.

    python -m studies.speed.threads

A server loads a model in one thread and runs it in another. Passes of the bundled target are timed in the
thread that loaded it (`same`), in another one while the first holds its OpenMP threads (`other`), and in
another one after the first has let go of them, as `Decoder.from_pretrained` does (`released`). Each is a
process of its own, in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Any

import torch

from draftwise import Decoder
from draftwise.models.threads import release
from studies.common.command import command, numbers, start

PAGE = "docs/explanation/pass-costs.md"
WAYS = ("same", "other", "released")
TEXT = 300  # tokens before the timed passes


def main() -> None:
    """Measure, and print one line of JSON for each number of texts."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--batches", type=numbers, default=[1, 4, 16, 40])
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind")
    parser.add_argument("--way", choices=WAYS, help="measure this one, in this process")
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measured(args.way, args.batches)))
        return
    found: dict[str, list[list[float]]] = defaultdict(list)
    words = [sys.executable, "-m", "studies.speed.threads", "--batches", ",".join(map(str, args.batches))]
    for _ in range(args.repeats):
        for way in WAYS:
            said = subprocess.run([*words, "--way", way], capture_output=True, text=True, check=True)
            found[way].append(json.loads(said.stdout))
    for k, batch in enumerate(args.batches):
        row: dict[str, Any] = {"texts": batch}
        for way, runs in found.items():
            times = [run[k] for run in runs]
            row |= {f"{way}, ms": round(1e3 * median(times), 2)}
            row |= {f"{way}, least and most": [round(1e3 * x, 2) for x in (min(times), max(times))]}
        print(json.dumps(row), flush=True)


def measured(way: str, batches: Sequence[int]) -> list[float]:
    """Seconds of a pass of one token for each of so many texts."""
    decoder = Decoder.from_pretrained("zoo:target", policy="none", compile="kept")
    rows: Any = decoder.loop.target
    found: list[float] = []

    def run() -> None:
        found.extend(passes(rows.rows, batch) for batch in batches)

    torch.ones(999, 999) @ torch.ones(999, 999)  # this thread has OpenMP threads again
    if way == "same":
        run()
        return found
    if way == "released":
        release()
    thread = Thread(target=run)
    thread.start()
    thread.join()
    return found


@torch.inference_mode()
def passes(rows: Any, batch: int, repeats: int = 25) -> float:
    """Median seconds of a pass."""
    for key in range(batch):
        rows.open(key)
    rows.feed(0, [[7 + k % 99 for k in range(TEXT)]] * batch, 1)
    seconds = []
    for _ in range(repeats):
        rows.held[:batch] = [TEXT] * batch
        began = perf_counter()
        rows.feed(0, [[7]] * batch, 1)
        seconds.append(perf_counter() - began)
    for key in range(batch):
        rows.close(key)
    return median(seconds[3:])


if __name__ == "__main__":
    start(main)

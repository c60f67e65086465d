"""What a short text takes on a quiet machine and beside busy processes, by the number of threads.

    python -m studies.speed.busy

Each start is a process of its own, and the settings take turns: all cores as threads (`all`), the same with
OMP_WAIT_POLICY=passive (`passive`), one thread (`one`), and the number that Draftwise chooses (`auto`), each
beside none and beside as many busy processes as there are cores. `first` and `second` are the seconds from
the start of a process to its first token, with an empty cache and with what the first start has kept there.
Takes some five minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from draftwise.models.processors import cores
from draftwise.models.threads import FIXED
from studies.common.command import command, numbers, start

PAGE = "docs/explanation/pass-costs.md"
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
SETTINGS = {
    "all": {"OMP_NUM_THREADS": str(cores())},
    "passive": {"OMP_NUM_THREADS": str(cores())} | PASSIVE,
    "one": {"OMP_NUM_THREADS": "1"},
    "auto": {},
}
LOAD = "while True: pass"
PROMPT = "Translate German to English: Ein Hund läuft am Strand."


def main() -> None:
    """Measure, and print one line of JSON for each number of busy processes and setting."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--busy", type=numbers, default=[0, cores()], help="numbers of busy processes")
    parser.add_argument("--repeats", type=int, default=2, help="processes of each kind")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--texts", type=int, default=4, help="texts of each process")
    parser.add_argument("--since", type=float, help="measure in this process, which began then")
    args = parser.parse_args()
    if args.since:
        print(json.dumps(measured(args.target, args.since, args.texts, args.tokens)))
        return
    words = [sys.executable, "-m", "studies.speed.busy", "--target", args.target]
    words += ["--texts", str(args.texts), "--tokens", str(args.tokens)]
    for busy in args.busy:
        with tempfile.TemporaryDirectory() as cache, beside(busy):
            found = defaultdict[str, list[dict[str, Any]]](list)
            for _ in range(max(2, args.repeats)):
                for setting, environment in SETTINGS.items():
                    own = {"XDG_CACHE_HOME": os.path.join(cache, setting)}
                    found[setting].append(child(words, environment | own))
        for line in lines(busy, found):
            print(json.dumps(line), flush=True)


def lines(busy: int, found: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """For each setting its speed, how much slower it is than the best other one, and its starts."""
    speed = {name: median(x for run in runs for x in run["tokens_per_s"]) for name, runs in found.items()}
    best = max(speed[name] for name in speed if name != "auto")
    for name, runs in found.items():
        every = [x for run in runs for x in run["tokens_per_s"]]
        yield {
            "busy processes": busy,
            "setting": name,
            "tokens/s": round(speed[name], 1),
            "least and most": [round(min(every), 1), round(max(every), 1)],
            "best fixed over it": round(best / speed[name], 2),
            "first, s": round(runs[0]["first"], 1),
            "second, s": round(runs[1]["first"], 1),
            "threads at the end": runs[-1]["threads"],
        }


@contextmanager
def beside(busy: int) -> Iterator[None]:
    """So many busy processes while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(busy)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def child(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What one process measures."""
    inherited = {name: value for name, value in os.environ.items() if name not in (*FIXED, *PASSIVE)}
    said = subprocess.run(
        [*words, "--since", str(time.time())],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=inherited | environment,
    )
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def measured(target: str, since: float, texts: int, tokens: int) -> dict[str, Any]:
    """Seconds to the first token, and the tokens per second of each text but the first."""
    import torch

    from draftwise import Decoder

    decoder = Decoder.from_pretrained(target, policy="none", compile="off")
    speeds, first, threads = list[float](), 0.0, 0
    for _ in range(texts):
        began = time.perf_counter()
        for _ in decoder.stream(PROMPT, max_new_tokens=tokens, eos=()):
            first, threads = first or time.time() - since, torch.get_num_threads()
        speeds.append(tokens / (time.perf_counter() - began))
    return {"first": first, "tokens_per_s": speeds[1:], "threads": threads}


if __name__ == "__main__":
    start(main)

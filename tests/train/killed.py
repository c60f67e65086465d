"""A training that is killed again and again: run by tests/train/test_resume.py as a process of its own.

Each life is a fork, so that the imports are paid for once. A life is killed a random moment after a random
number of reports, with SIGKILL: it cannot clean up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

import accelerate  # type: ignore[import-untyped]
import matplotlib.figure
import torch
import transformers.models.llama.modeling_llama

from draftwise.train import drafter
from draftwise.train.settings import DrafterRun

IMPORTED = (accelerate, matplotlib.figure, transformers.models.llama.modeling_llama)  # once, for all lives


def live(run: DrafterRun, out: Path, reports: int | None, rng: Random) -> str:
    """One life; with `reports`, it is killed after so many. Returns how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        drafter.train(run, out, lambda *_: void(os.write(writing, b".")))
        os._exit(0)
    os.close(writing)
    seen = 0
    while reports is None or seen < reports:
        got = os.read(reading, 1)
        if not got:
            break
        seen += 1
    if reports is not None and seen == reports:
        time.sleep(rng.random() * 0.03)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    return "killed" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}"


def void(value: object) -> None:
    """Nothing."""


def main(options: str, out: str, seed: int) -> None:
    """Five deaths, then a life to the end; prints how each life ended."""
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    given = json.loads(options)
    run, rng = DrafterRun(**given | {k: tuple(given[k]) for k in ("data", "temperatures")}), Random(seed)
    print(*[live(run, Path(out), rng.randint(1, 9), rng) for _ in range(5)], sep=",", end=",")
    print(live(run, Path(out), None, rng))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

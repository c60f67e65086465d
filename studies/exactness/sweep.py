"""Every causal LM class of Transformers, small, with random weights, in every way of decoding.

    python -m studies.exactness.sweep                      # all of them, some minutes on one core
    python -m studies.exactness.sweep llama gemma3         # those whose names begin so
    python -m studies.exactness.sweep --table docs/reference/architectures.md

Prints a line for each model: equal, tie (rounding alone), parted (the text is that of the model's decoding
without a cache; its own with one is another), refused (with the reason), different, crash, or not built
(Transformers itself cannot make or run it). The exit status is 1 if any is different or crashes.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from studies.common.command import command, start
from studies.exactness.inputs import afresh

PAGE = "docs/reference/architectures.md"


def quiet() -> None:
    """In every process: no warnings, and one thread."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(50)
    torch.set_num_threads(1)


def timed(case: Any) -> tuple[Any, float]:
    """The verdict on a case, and the seconds that it took."""
    from tests.architectures.judge import judge

    start = time.perf_counter()
    return judge(case), time.perf_counter() - start


def main() -> int:
    """Judge, print, and write the table if one is asked for."""
    parser = command(__doc__, PAGE)
    parser.add_argument("names", nargs="*", help="beginnings of names; all without any")
    parser.add_argument("--shard", default="0/1", help="decode part I of N only: I/N")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--table", type=Path, help="write what was found as Markdown to this file")
    args = parser.parse_args()
    import transformers

    from tests.architectures.cases import cases
    from tests.architectures.table import table

    part, parts = map(int, args.shard.split("/"))
    chosen = [c for c in cases() if not args.names or c.name.startswith(tuple(args.names))]
    chosen, verdicts = [c for c in chosen if c.shard(parts) == part], []
    with afresh(), multiprocessing.get_context("spawn").Pool(args.jobs, quiet) as pool:
        for verdict, seconds in pool.imap(timed, chosen):
            verdicts.append(verdict)
            ways, usual = verdict.ways.items(), ("equal", verdict.word)
            rest = [f"{way}={word}" for way, word in ways if word not in usual]
            line = f"{verdict.word:10}{verdict.name:32}{seconds:5.1f} s  {' '.join(rest)} {verdict.why}"
            print(line.rstrip(), flush=True)
    words = Counter(v.word for v in verdicts)
    print(", ".join(f"{n} {word}" for word, n in words.most_common()))
    if args.table:
        args.table.write_text(table(verdicts, transformers.__version__))
    return int(words["different"] + words["crash"] > 0)


if __name__ == "__main__":
    start(main)

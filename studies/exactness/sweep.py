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
import os
import tempfile
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from studies.common.command import command, start

PAGE = "docs/reference/architectures.md"


@contextmanager
def afresh() -> Iterator[None]:
    """Probe every model again within the block: no verdict of an earlier probe counts."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def quiet() -> None:
    """In every process: no warnings, and one thread."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(50)
    torch.set_num_threads(1)


def parser_of(about: str | None, page: str) -> ArgumentParser:
    """The command line of a sweep."""
    parser = command(about, page)
    parser.add_argument("names", nargs="*", help="beginnings of names; all without any")
    parser.add_argument("--shard", default="0/1", help="decode part I of N only: I/N")
    parser.add_argument("--table", type=Path, help="write what was found as Markdown to this file")
    return parser


def chosen(cases: Iterable[Any], args: Namespace) -> list[Any]:
    """The cases that are asked for."""
    part, parts = map(int, args.shard.split("/"))
    named = [case for case in cases if not args.names or case.name.startswith(tuple(args.names))]
    return [case for case in named if case.shard(parts) == part]


def report(
    judged: Iterable[tuple[Any, Any, float]], args: Namespace, table: Callable[[list[Any], str], str]
) -> int:
    """Print each case's verdict as it comes, with its seconds, then the counts, and write the table."""
    import transformers

    pairs = []
    for case, verdict, seconds in judged:
        pairs.append((case, verdict))
        rest = [f"{way}={word}" for way, word in verdict.ways.items() if word not in ("equal", verdict.word)]
        line = f"{verdict.word:10}{case.name:32}{seconds:5.1f} s  {' '.join(rest)} {verdict.why[:600]}"
        print(line.rstrip(), flush=True)
    words = Counter(verdict.word for _, verdict in pairs)
    print(", ".join(f"{n} {word}" for word, n in words.most_common()))
    if args.table:
        args.table.write_text(table(pairs, transformers.__version__))
    return int(words["different"] + words["crash"] > 0)


def timed(case: Any) -> tuple[Any, Any, float]:
    """The case, its verdict, and the seconds that it took."""
    from tests.architectures.judge import judge

    begin = time.perf_counter()
    return case, judge(case), time.perf_counter() - begin


def main() -> int:
    parser = parser_of(__doc__, PAGE)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()

    from tests.architectures.cases import cases
    from tests.architectures.table import table

    def page(pairs: list[Any], version: str) -> str:
        return table([verdict for _, verdict in pairs], version)

    with afresh(), multiprocessing.get_context("spawn").Pool(args.jobs, quiet) as pool:
        return report(pool.imap(timed, chosen(cases(), args)), args, page)


if __name__ == "__main__":
    start(main)

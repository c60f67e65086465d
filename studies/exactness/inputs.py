"""Every class that reads pictures, sound or another text, small and random, inside its own `generate`.

    python -m studies.exactness.inputs                      # all of them, some minutes on one core
    python -m studies.exactness.inputs whisper qwen2_vl     # those of these names
    python -m studies.exactness.inputs --table docs/reference/inputs.md

Prints a line for each class: equal, tie (rounding alone), refused (with the reason), different, crash, or
not built (no small configuration, or none of the forms of inputs that the sweep knows). The exit status is 1
if any is different or crashes.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from studies.common.command import command, start

PAGE = "docs/reference/inputs.md"


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


def main() -> int:
    """Judge, print, and write the table if one is asked for."""
    parser = command(__doc__, PAGE)
    parser.add_argument("names", nargs="*", help="names; all without any")
    parser.add_argument("--shard", default="0/1", help="decode part I of N only: I/N")
    parser.add_argument("--table", type=Path, help="write what was found as Markdown to this file")
    args = parser.parse_args()
    import torch
    import transformers

    from tests.architectures.inputs.cases import cases
    from tests.architectures.inputs.judge import judge
    from tests.architectures.inputs.table import table

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(50)
    torch.set_num_threads(1)
    part, parts = map(int, args.shard.split("/"))
    verdicts = []
    chosen = [c for c in cases() if (not args.names or c.name in args.names) and c.shard(parts) == part]
    for case in chosen:
        began = time.perf_counter()
        with afresh():
            verdict = judge(case)
        verdicts.append((case, verdict))
        ways = " ".join(f"{way}={word}" for way, word in verdict.ways.items() if word != "equal")
        seconds = time.perf_counter() - began
        print(
            f"{verdict.word:10}{case.name:32}{seconds:5.1f} s  {ways} {verdict.why[:600]}".rstrip(),
            flush=True,
        )
    words = Counter(v.word for _, v in verdicts)
    print(", ".join(f"{n} {word}" for word, n in words.most_common()))
    if args.table:
        args.table.write_text(table(verdicts, transformers.__version__))
    return int(words["different"] + words["crash"] > 0)


if __name__ == "__main__":
    start(main)

"""Every class that reads pictures, sound or another text, small and random, inside its own `generate`.

    python -m studies.exactness.inputs                      # all of them, some minutes on one core
    python -m studies.exactness.inputs whisper qwen2_vl     # those of these names
    python -m studies.exactness.inputs --kept inputs.json --table docs/reference/inputs.md

Prints a line for each class: equal, tie (rounding alone), refused (with the reason), different, crash, or
not built (no small configuration, or none of the forms of inputs that the sweep knows). With `--kept`
verdicts are saved as they come, and what the file has from the same code is not decoded again. The exit
status is 1 if any is different or crashes.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from pathlib import Path

from studies.common.command import command, start
from studies.exactness.kept import Kept, afresh

PAGE = "docs/reference/inputs.md"


def main() -> int:
    """Judge, print, and write the table if one is asked for."""
    parser = command(__doc__, PAGE)
    parser.add_argument("names", nargs="*", help="names; all without any")
    parser.add_argument("--shard", default="0/1", help="decode part I of N only: I/N")
    parser.add_argument("--kept", type=Path, help="file of verdicts")
    parser.add_argument("--table", type=Path, help="write what was found as Markdown to this file")
    args = parser.parse_args()
    import torch
    import transformers

    from tests.architectures.inputs.cases import cases
    from tests.architectures.inputs.judge import judge
    from tests.architectures.inputs.table import table
    from tests.architectures.judge import Verdict

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(50)
    torch.set_num_threads(1)
    part, parts = map(int, args.shard.split("/"))
    kept = Kept(args.kept)
    chosen = [c for c in cases() if (not args.names or c.name in args.names) and c.shard(parts) == part]
    for case in chosen:
        if kept.get(case.name) is not None:
            continue
        began = time.perf_counter()
        with afresh():
            verdict = judge(case)
        kept.add(verdict)
        ways = " ".join(f"{way}={word}" for way, word in verdict.ways.items() if word != "equal")
        seconds = time.perf_counter() - began
        print(
            f"{verdict.word:10}{case.name:32}{seconds:5.1f} s  {ways} {verdict.why[:600]}".rstrip(),
            flush=True,
        )
    verdicts = [(case, Verdict(**kept.get(case.name))) for case in chosen]
    words = Counter(v.word for _, v in verdicts)
    print(", ".join(f"{n} {word}" for word, n in words.most_common()))
    if args.table:
        args.table.write_text(table(verdicts, transformers.__version__))
    return int(words["different"] + words["crash"] > 0)


if __name__ == "__main__":
    start(main)

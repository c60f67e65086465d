"""Every class that reads pictures, sound or another text, small and random, inside its own `generate`.

    python -m studies.exactness.inputs                      # all of them, some minutes on one core
    python -m studies.exactness.inputs whisper qwen2_vl     # those whose names begin so
    python -m studies.exactness.inputs --table docs/reference/inputs.md

Prints a line for each class: equal, tie (rounding alone), refused (with the reason), different, crash, or
not built (no small configuration, or none of the forms of inputs that the sweep knows). The exit status is 1
if any is different or crashes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from studies.common.command import start
from studies.exactness.sweep import afresh, chosen, parser_of, quiet, report

PAGE = "docs/reference/inputs.md"


def judged(cases: Sequence[Any]) -> Iterator[tuple[Any, Any, float]]:
    """Each case with its verdict, and the seconds that it took."""
    from tests.architectures.inputs.judge import judge

    for case in cases:
        begin = time.perf_counter()
        with afresh():
            verdict = judge(case)
        yield case, verdict, time.perf_counter() - begin


def main() -> int:
    args = parser_of(__doc__, PAGE).parse_args()

    from tests.architectures.inputs.cases import cases
    from tests.architectures.inputs.table import table

    quiet()
    return report(judged(chosen(cases(), args)), args, table)


if __name__ == "__main__":
    start(main)

"""Runs the parts of a study in turn, each in a process of its own, which may fail, hang or crash."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

Row = dict[str, Any]
Step = Callable[[], Row]
MOST = 1500  # characters of an error


def run_part(line: Sequence[str], seconds: float, note: Callable[[Row], None]) -> str:
    """Run a command that prints rows as JSON, one a line; returns why it ended early, or "".

    After so many seconds the command and its children are killed.
    """
    ends: list[str] = []
    # A character may be cut where the child was killed: `errors` replaces it.
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        child = Popen(
            line, stdout=PIPE, stderr=errors, encoding="utf-8", errors="replace", start_new_session=True
        )

        def end() -> None:
            ends.append(f"took longer than {seconds:.0f} s")
            os.killpg(child.pid, signal.SIGKILL)

        timer = Timer(seconds, end)
        timer.start()
        assert child.stdout is not None
        for text in child.stdout:
            row: Any = None
            with suppress(ValueError):  # a library's own line, or one that was cut where the child was killed
                row = json.loads(text)
            if isinstance(row, dict):
                note(row)
        code = child.wait()
        timer.cancel()
        errors.seek(0)
        tail = errors.read()[-MOST:]
    return ends[0] if ends else f"ended with {code}: {tail}" if code else ""


def print_rows(part: str, steps: Iterable[Step]) -> int:
    """Print the row of each step; one that raises leaves an error in its place. Returns how many raised."""
    count, left = 0, iter(steps)
    while True:
        try:
            if (step := next(left, None)) is None:
                return count
            row = step()
        except Exception:  # another library's, or ours: the other steps still tell something
            count, row = count + 1, {"error": traceback.format_exc()[-MOST:]}
        print(json.dumps({"part": part, **row}), flush=True)

"""The command line: verbs of one idea share a file; a heavy import stands inside the verb that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 is a failed check, 2 bad input, 130 Ctrl-C, at any moment."""
    _open_closed_streams()
    try:
        from .app import run
        from .completion import joined_words

        with joined_words(os.environ):
            status = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        _leave_queued_work()
    return status


def _open_closed_streams() -> None:
    """Give a stream that the caller has closed, which Python sets to None, an end that holds nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open to the end


def _leave_queued_work() -> None:
    """Empty the queues of all thread pools: Python's exit would first do what waits there.

    PyTorch's compiler queues its C++ files so, which is minutes of work after Ctrl-C.
    """
    from concurrent.futures import thread
    from contextlib import suppress
    from queue import Empty

    for queue in list(thread._threads_queues.values()):
        with suppress(Empty):
            while True:
                queue.get_nowait()

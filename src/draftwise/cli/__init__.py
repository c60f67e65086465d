"""The command line: one file a verb, and heavy imports only inside the verb that needs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 is a failed check, 2 bad input, 130 Ctrl-C, at any moment."""
    try:
        from .app import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 130

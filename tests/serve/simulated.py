"""A server in a process of its own, over the target that writes the alphabet, slowly: for signals."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from draftwise.serve.limits import Limits
from draftwise.serve.run import serve
from draftwise.state.file import StateFile

from .conftest import MODEL, Gated, simulated


class Slow(Gated):
    """Takes some time for each pass."""

    def verify(self, batch: Any) -> Any:
        time.sleep(0.05)
        return super().verify(batch)


def main(state: str, grace: str) -> None:
    """Serve until a signal comes."""
    decoder = simulated("ucb1", Slow())
    path = Path(state)
    decoder.state = StateFile(path, decoder.loop.policy, name="ucb1", target="t", drafters={})
    decoder.state.load()
    serve(decoder, MODEL, limits=Limits(grace=float(grace)), port=0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How long a start may take for timing what is faster here, and what becomes of unclear answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Any

from ...errors import UserError
from .. import verdicts
from ..stages import announce
from ..threads import THREADS

SECONDS = 3.0  # of trials in one start
MODES = ("auto", "off", "all")
ENOUGH = 3  # unclear answers of a quiet machine, after which the last one stays
VARIABLE = "DRAFTWISE_TRIALS"


@dataclass(slots=True)
class Trials:
    """The time left for trials: `SECONDS` of a start ("auto"), none ("off"), or any ("all"), which also
    repeats those with an answer."""

    mode: str = "auto"
    left: float = SECONDS
    clock: Callable[[], float] = time.perf_counter

    def wants(self, known: Any) -> bool:
        """Whether to time something with this saved verdict.

        An unclear one is corrected when the machine is quiet.
        """
        if self.mode == "all":
            return True
        unclear = isinstance(known, dict) and known.get("unclear", 0)
        useful = not isinstance(known, dict) or (0 < unclear < ENOUGH and not THREADS.busy)
        return self.mode == "auto" and useful and self.left > 0

    def budget(self, most: float) -> float:
        """The seconds that one timing may take."""
        return most if self.mode == "all" else min(most, max(self.left, 0.0))

    @property
    def limit(self) -> float:
        """The seconds that one round of a timing may take."""
        return inf if self.mode == "all" else SECONDS / 2

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Take what the block takes from the time left."""
        announce(f"timing {what}")
        began = self.clock()
        try:
            yield
        finally:
            self.left -= self.clock() - began


_current: ContextVar[Trials | None] = ContextVar("trials", default=None)


def trials() -> Trials:
    """Those of the start under way; outside one, with time of their own."""
    return _current.get() or Trials(_mode())


@contextmanager
def start(mode: str = "") -> Iterator[None]:
    """Let all trials of the block share one allowance; a block within another shares its.

    Raises:
        UserError: `mode`, or the environment's DRAFTWISE_TRIALS, is none of `MODES`.
    """
    before = _current.get()
    token = _current.set(before or Trials(_mode(mode)))
    try:
        yield
    finally:
        _current.reset(token)


def keep(kind: str, key: str, verdict: Mapping[str, Any], *, lasting: bool) -> None:
    """Save a verdict; unless it is `lasting`, as an unclear one, which a later start may correct."""
    known = verdicts.load(kind, key)
    before = known.get("unclear", 0) if isinstance(known, dict) else 0
    unclear = {} if lasting else {"unclear": min(before + (not THREADS.busy), ENOUGH) or 1}
    verdicts.keep(kind, key, {**verdict, **unclear})


def _mode(asked: str = "") -> str:
    mode = asked or os.environ.get(VARIABLE, "auto")
    if mode not in MODES:
        raise UserError(f"trials={mode!r}: choose from {', '.join(MODES)}")
    return mode

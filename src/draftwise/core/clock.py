"""The source of a round's times: measured, or taken from a replay's cost table."""

from __future__ import annotations

from typing import Protocol

from .round import Seconds


class Clock(Protocol):
    """Receives the measured times and returns the times to be used."""

    def target(self, seconds: float, tokens: int) -> float:
        """Seconds of a target pass over `tokens` tokens."""
        ...

    def round(self, seconds: Seconds) -> Seconds:
        """Seconds of one request's round, by phase."""
        ...

"""Where the seconds of a round come from: measured, or said by a replay's table of costs."""

from __future__ import annotations

from typing import Protocol

from .round import Seconds


class Clock(Protocol):
    """Is told what the loop measured, and says what counts."""

    def target(self, seconds: float, tokens: int) -> float:
        """The seconds of a target pass over so many tokens."""
        ...

    def round(self, seconds: Seconds) -> Seconds:
        """The seconds of one request's round, phase by phase."""
        ...


class Measured:
    """What was measured counts."""

    def target(self, seconds: float, tokens: int) -> float:
        """As measured."""
        return seconds

    def round(self, seconds: Seconds) -> Seconds:
        """As measured."""
        return seconds


MEASURED = Measured()

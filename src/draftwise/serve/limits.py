"""What the server takes on at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ..errors import UserError

MEBIBYTE = 1 << 20
CHOICES = ("nothing", "bounds", "everything")
RESERVED = 8  # one place in so many of the queue is kept from a client that has all others
_LEAST = {
    "batch": (1, "1 or more texts"),
    "queue": (0, "0 or more texts"),
    "window": (0, "a number of tokens, or 0 for the target's own"),
    "body": (1, "a number of bytes"),
    "timeout": (0.001, "a number of seconds"),
    "grace": (0, "a number of seconds"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the server; one out of its range raises a `UserError`.

    Attributes:
        batch: Texts that are decoded together.
        queue: Texts that wait for a place; a request that does not fit is refused with status 429.
        window: Longest text in tokens, prompt included; 0 stands for the target's own window.
        body: Longest body of a request, in bytes.
        timeout: Seconds from the arrival of a request to the end of its answer.
        grace: Seconds that running texts have to finish once the server is told to stop.
        choice: What clients may choose of speculation: nothing, bounds (fewer drafters, shorter drafts,
            none), or everything (a policy that plays one arm as well).
    """

    batch: int = 8
    queue: int = 64
    window: int = 0
    body: int = 4 * MEBIBYTE
    timeout: float = 600.0
    grace: float = 30.0
    choice: str = "bounds"

    def __post_init__(self) -> None:
        for name, (least, remedy) in _LEAST.items():
            value = getattr(self, name)
            if not isfinite(value) or value < least:
                raise UserError(f"{name}={value}: give {remedy}")
        if self.choice not in CHOICES:
            raise UserError(f"clients_choose={self.choice!r}: give one of {', '.join(CHOICES)}")

    @property
    def one_client(self) -> int:
        """How many texts one client may have here, running and waiting."""
        return self.batch + self.queue - self.queue // RESERVED

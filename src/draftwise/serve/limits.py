"""What the server takes on at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Annotated, ClassVar

from ..errors import UserError

CHOICES = ("nothing", "bounds", "everything")
RESERVED = 8  # one place in so many of the queue is kept from a client that has all others
_LEAST = {
    "batch": (1, "1 or more texts"),
    "queue": (0, "0 or more texts"),
    "window": (0, "a number of tokens, or 0 for the target's own"),
    "max_body": (1, "a number of bytes"),
    "timeout": (0.001, "a number of seconds"),
    "grace": (0, "a number of seconds"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the server, and options of the command line; one out of its range raises a `UserError`.

    A request that does not fit into the queue is refused with status 429. Clients may choose nothing of
    speculation, bounds (fewer drafters, shorter drafts, none), or everything (a policy that plays one arm
    as well).
    """

    section: ClassVar[str] = "Bounds"
    batch: Annotated[int, "Texts decoded together."] = 8
    queue: Annotated[int, "Texts that may wait; more are refused."] = 64
    window: Annotated[int, "Longest text in tokens, with its prompt; 0: the target's window."] = 0
    max_body: Annotated[int, "Longest body of a request in bytes."] = 4 << 20
    timeout: Annotated[float, "Seconds that an answer may take."] = 600.0
    grace: Annotated[float, "Seconds to finish running texts after SIGTERM; 0: cut them."] = 30.0
    clients_choose: Annotated[str, "What clients may choose of speculation: nothing, bounds, everything."] = (
        "bounds"
    )

    def __post_init__(self) -> None:
        for name, (least, remedy) in _LEAST.items():
            value = getattr(self, name)
            if not isfinite(value) or value < least:
                raise UserError(f"{name}={value}: give {remedy}")
        if self.clients_choose not in CHOICES:
            raise UserError(f"clients_choose={self.clients_choose!r}: give one of {', '.join(CHOICES)}")

    @property
    def one_client(self) -> int:
        """How many texts one client may have here, running and waiting."""
        return self.batch + self.queue - self.queue // RESERVED

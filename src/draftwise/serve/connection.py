"""A connection that waits for its client no longer than it must."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .request_log import FACTS

CONNECTIONS = 512  # at once, within the 1,024 files of most systems
LEAST_PATIENCE = 1.0  # seconds that a client has for a request even where others want its place
PATIENCE = 30.0  # seconds that a client has for the head of a request, or to take more of an answer
LEAST = 4096  # bytes of an answer that it must take in this time


class Connection(H11Protocol):
    """Uvicorn's, with a bound on how long a client is waited for.

    Uvicorn by itself waits without end for the head of a request, for the rest of a body that was refused,
    and for a client to read an answer. Here a client that has `PATIENCE` seconds for one of these, and
    lets them pass, is cut off. Where all `CONNECTIONS` are taken, a new one takes the place of the client
    that has been waited for longest, so that silent ones do not lock others out.
    """

    since = 0.0  # when a wait for the client began, also one for the rest of a body; 0 while there is none
    late: asyncio.TimerHandle | None = None  # while the client is waited for
    unread = 0  # bytes of an answer that it had not taken when that began

    def connection_made(self, transport: Any) -> None:
        """A client is here."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            self._longest_waited_for()._cut("too_many_connections")
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        super().connection_lost(exc)
        if self.late is not None:
            self.late.cancel()

    def handle_events(self) -> None:
        """Something of a request has come."""
        super().handle_events()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP; it is logged and counted like any other request."""
        super().send_400_response(msg)
        self._record(400, "invalid_http")

    def on_response_complete(self) -> None:
        """All of an answer has been written."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The client has much to read."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """It has read most of it."""
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        """See whether the client is waited for."""
        waits = self.cycle is None or self.cycle.response_complete or self.flow.write_paused
        self.since = (self.since or self.loop.time()) if waits or self.cycle.more_body else 0.0
        if not waits and self.late is not None:
            self.late.cancel()
            self.late = None
        elif waits and self.late is None:
            self._wait()

    def _wait(self) -> None:
        self.unread = self.transport.get_write_buffer_size()
        self.late = self.loop.call_later(PATIENCE, self._late)

    def _late(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left and left <= self.unread - LEAST:
            self._wait()
        else:
            self._cut("request_timeout" if self.cycle is None else "")

    def _longest_waited_for(self) -> Connection:
        """The connection that gives its place to a new one: itself, if no client lets us wait."""
        until = self.loop.time() - LEAST_PATIENCE
        others: set[Any] = self.connections - {self}
        waited = [one for one in others if 0 < one.since <= until]
        return min(waited, key=lambda one: one.since, default=self)

    def _cut(self, reason: str) -> None:
        """Close the connection; with a reason, where no request of it is logged, the log has it."""
        self.transport.abort()
        self.connections.discard(self)
        if reason:
            self._record(0, reason)

    def _record(self, status: int, reason: str) -> None:
        log: Any = self.config.app
        log.record({"client": self.client, FACTS: {"reason": reason}}, status, 0.0)

"""Runs the application until a signal ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from ipaddress import ip_address
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UserError
from ..generation.decoder import Decoder
from .app import make_app
from .engine import Engine
from .limits import Limits
from .middleware import FACTS, facts_of, json_to_stderr
from .service import Service

MAX_PORT = 65535
LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]")
CONNECTIONS = 512  # at once, within the 1,024 files of most systems
LEAST_PATIENCE = 1.0  # seconds that a client has for a request even where others want its place
PATIENCE = 30.0  # seconds that a client has for the head of a request, or to take more of an answer
LEAST_BYTES = 4096  # of an answer that it must take in this time


class Connection(H11Protocol):
    """Uvicorn's connection, with a bound on how long a client is waited for.

    Uvicorn by itself waits without end for the head of a request, for the rest of a body that was refused,
    and for a client to read an answer. Here a client that has `PATIENCE` seconds for one of these, and
    lets them pass, is cut off. Where all `CONNECTIONS` are taken, a new one takes the place of the client
    that has been waited for longest, so that silent ones do not lock others out.
    """

    since = 0.0  # when a wait for the client began, also one for the rest of a body; 0 while there is none
    timer: asyncio.TimerHandle | None = None  # while the client is waited for
    unread = 0  # bytes of an answer that it had not taken when that began

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            # The one waited for longest gives its place: this one, if no client lets us wait.
            until = self.loop.time() - LEAST_PATIENCE
            others: set[Any] = self.connections - {self}
            waited = [other for other in others if 0 < other.since <= until]
            min(waited, key=lambda other: other.since, default=self)._cut("too_many_connections")
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timer is not None:
            self.timer.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        self._update()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; it is logged and counted like any other request."""
        super().send_400_response(msg)
        self._record(400, "invalid_http")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update()

    def _update(self) -> None:
        """Start or stop the timer."""
        is_waiting = self.cycle is None or self.cycle.response_complete or self.flow.write_paused
        self.since = (self.since or self.loop.time()) if is_waiting or self.cycle.more_body else 0.0
        if not is_waiting and self.timer is not None:
            self.timer.cancel()
            self.timer = None
        elif is_waiting and self.timer is None:
            self._wait()

    def _wait(self) -> None:
        self.unread = self.transport.get_write_buffer_size()
        self.timer = self.loop.call_later(PATIENCE, self._check_progress)

    def _check_progress(self) -> None:
        left, cycle = self.transport.get_write_buffer_size(), cast(Any, self.cycle)
        if left and left <= self.unread - LEAST_BYTES:
            self._wait()
        elif cycle is None:
            self._cut("request_timeout")
        else:
            facts_of(cycle.scope).setdefault("reason", "slow_reader")
            self._cut()

    def _cut(self, reason: str = "") -> None:
        """Close the connection; with a reason, where no request of it is logged, the log has it."""
        self.transport.abort()
        self.connections.discard(self)
        if reason:
            self._record(0, reason)

    def _record(self, status: int, reason: str) -> None:
        log: Any = self.config.app
        log.record({"client": self.client, FACTS: {"reason": reason}}, status, 0.0)


class Server(uvicorn.Server):
    """Stops in good order: a signal lets running texts finish within `grace` seconds, or cuts them."""

    def __init__(self, config: uvicorn.Config, engine: Engine, grace: float, greeting: str) -> None:
        super().__init__(config)
        self.engine, self.grace, self.greeting = engine, grace, greeting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the address."""
        await super().startup(sockets=sockets)
        if self.started:
            print(self.greeting, flush=True)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Take no new text after a signal."""
        self.engine.stop(seconds=self.grace)
        super().handle_exit(sig, frame)


def serve(
    decoder: Decoder,
    model: str,
    *,
    limits: Limits,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str = "",
    origins: Sequence[str] = (),
    log: bool = True,
) -> None:
    """Serve a decoder until SIGINT or SIGTERM; with `log` each request is a line on standard error."""
    listener = bind(host, port)
    address, number = listener.getsockname()[:2]
    service = Service(decoder, model, limits)
    app = make_app(service, key=key, hosts=names_of(host), origins=origins)
    config = make_config(app, limits.grace)
    shown = f"[{address}]" if ":" in address else address
    greeting = f"serving {model} at http://{shown}:{number}/v1"
    with json_to_stderr(requests=log), closing(listener), suppress(KeyboardInterrupt):
        # Ctrl-C is raised again by uvicorn once everything has ended
        Server(config, service.engine, limits.grace, greeting).run(sockets=[listener])


def make_config(app: Any, grace: float) -> uvicorn.Config:
    """Return uvicorn's settings for an application whose texts have `grace` seconds to finish."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(grace) + 5,
    )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket at this address; a `UserError` says why it cannot be used."""
    if not 0 <= port <= MAX_PORT:  # the system would take the rest of a division
        raise UserError(f"--port {port}: give a number from 0 (any free one) to {MAX_PORT}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return listener
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot listen at {host}:{port} ({reason}): give another --host or --port"
        raise UserError(message) from error


def names_of(host: str) -> Collection[str]:
    """Return the names that a server at this address may be called by; none if other machines reach it."""
    name = host.lower()
    return (*LOCAL, f"[{name}]" if ":" in name else name) if is_local(host) else ()


def is_local(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

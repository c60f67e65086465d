"""Runs the application until a signal ends it."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from ipaddress import ip_address
from typing import Any

import uvicorn

from ..errors import UserError
from ..generation.decoder import Decoder
from .app import make_app
from .connection import Connection
from .engine import Engine
from .limits import Limits
from .request_log import json_to_stderr
from .service import Service

MOST = 65535  # the last port
LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]")


class Server(uvicorn.Server):
    """Stops in good order: a signal lets running texts finish within `grace` seconds, or cuts them."""

    def __init__(self, config: uvicorn.Config, engine: Engine, grace: float, said: str) -> None:
        super().__init__(config)
        self.engine, self.grace, self.said = engine, grace, said

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets=sockets)
        if self.started:
            print(self.said, flush=True)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal: no new text begins."""
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
    """Serve a decoder until SIGINT or SIGTERM; with `log` each request is a line on standard error.

    Raises:
        UserError: the address cannot be used.
    """
    listening = bound(host, port)
    name, at = listening.getsockname()[:2]
    service = Service(decoder, model, limits)
    app = make_app(service, key=key, hosts=known_as(host), origins=origins)
    config = configured(app, limits.grace)
    where = f"[{name}]" if ":" in name else name
    said = f"serving {model} at http://{where}:{at}/v1"
    with json_to_stderr(requests=log), closing(listening), suppress(KeyboardInterrupt):
        # Ctrl-C is raised again by uvicorn once everything has ended
        Server(config, service.engine, limits.grace, said).run(sockets=[listening])


def configured(app: Any, grace: float) -> uvicorn.Config:
    """Uvicorn's settings for an application whose texts have `grace` seconds to finish."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(grace) + 5,
    )


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address.

    Raises:
        UserError: the address cannot be used.
    """
    if not 0 <= port <= MOST:  # the system would take the rest of a division
        raise UserError(f"--port {port}: give a number from 0 (any free one) to {MOST}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        return made
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot listen at {host}:{port} ({reason}): give another --host or --port"
        ) from error


def known_as(host: str) -> Collection[str]:
    """The names by which a server at this address may be called; any, if other machines can reach it."""
    name = host.lower()
    return (*LOCAL, f"[{name}]" if ":" in name else name) if is_local(host) else ()


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

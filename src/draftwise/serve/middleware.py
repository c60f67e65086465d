"""ASGI middleware: the log of requests, and the checks of their hosts, keys and bodies."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from hmac import compare_digest
from http import HTTPStatus
from time import monotonic
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import APIError
from .metrics import Metrics

LOG = logging.getLogger(f"{__package__}.requests")
FACTS = "draftwise.facts"  # where an ASGI scope holds what the line of its request has besides
CLIENT_LEFT = 499  # the status of a request whose client has left before its answer
REASONS = {0: "closed", CLIENT_LEFT: "client_left"}  # of statuses that no answer has
BODY_SECONDS = 30.0  # within which a body must have arrived
ALL_BODIES = 16  # times the longest body: what all bodies together may hold


class JsonResponse(JSONResponse):
    """JSON with every character outside ASCII escaped: also half a character that a client sent."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def error_response(error: APIError) -> JsonResponse:
    """Return the answer that an error is."""
    return JsonResponse(error.body, error.status, headers=error.headers)


class RequestLog:
    """Writes one line of JSON and counts every request, whatever became of it; around everything else.

    A line has no text but that of an error's message. `routes` are the paths that lines and counts name;
    others are `other`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Collection[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = monotonic(), CLIENT_LEFT

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, observe)
        finally:
            self.record(scope, status, monotonic() - start)

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        """Write the line of a request and count it."""
        path = getattr(scope.get("route"), "path", scope.get("path"))
        route = path if path in self.routes else "other"
        host, port = scope.get("client") or ("", 0)
        line = {
            "client": f"{host}:{port}",
            "method": scope.get("method"),
            "route": route,
            "status": status,
            "reason": _reason(status),
            "seconds": round(seconds, 4),
        } | facts_of(scope)
        LOG.info(line)
        self.metrics.add_request(route, status, str(line["reason"]))


def facts_of(scope: Scope) -> dict[str, Any]:
    """Return the other fields of a request's line; every layer may add some."""
    facts: dict[str, Any] = scope.setdefault(FACTS, {})
    return facts


def note_error(facts: dict[str, Any], error: APIError) -> None:
    """Add why a request was refused, or its stream ended."""
    facts["reason"] = error.code or _reason(error.status)
    facts["message"] = error.message
    if error.param is not None:
        facts["param"] = error.param


def _reason(status: int) -> str:
    return REASONS.get(status) or HTTPStatus(status).phrase.lower().replace(" ", "_")


class JsonLine(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: the fields of a record that has some, else its message, and any traceback."""
        fields = record.msg
        if not isinstance(fields, dict):
            fields = {"logger": record.name, "message": record.getMessage().strip()}
        line = {"time": round(record.created, 3), "level": record.levelname.lower()} | fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def json_to_stderr(*, requests: bool) -> Iterator[None]:
    """Write all that is logged meanwhile to standard error as JSON; with `requests` each is a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine())
    loggers = [logging.getLogger(name) for name in ("draftwise", "uvicorn", "asyncio")]
    replaced, level = [list(logger.handlers) for logger in loggers], LOG.level
    LOG.setLevel(logging.INFO if requests else logging.CRITICAL)
    for logger in loggers:
        logger.handlers = [handler]
    try:
        yield
    finally:
        LOG.setLevel(level)
        for logger, handlers in zip(loggers, replaced, strict=True):
            logger.handlers = handlers


class RequestGuard:
    """Checks a request's host and key, and reads its whole body, bounded in bytes and seconds.

    The paths in `public` need no key: they show nothing of any text. `hosts` are the names by which the
    server may be called; empty allows any. A page of another origin whose name was made to resolve to this
    machine is refused by that.
    """

    def __init__(
        self, app: ASGIApp, *, key: str, body: int, public: Collection[str] = (), hosts: Collection[str] = ()
    ) -> None:
        self.app, self.key, self.max_body = app, key.encode(), body
        self.public, self.hosts = frozenset(public), frozenset(hosts)
        self.bytes = 0  # of the bodies that are read or answered now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sizes: list[int] = []  # bytes of this body, piece by piece
        try:
            self._check(scope)
            body = await self._read(scope, receive, sizes)
            if body is not None:
                await self.app(scope, _replay(body, receive), send)
        except APIError as error:
            note_error(facts_of(scope), error)
            await error_response(error)(scope, receive, send)
        finally:
            self.bytes -= sum(sizes)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:  # RFC 9112, 6.3
            message = "the request has Content-Length and Transfer-Encoding: send one of them"
            raise APIError(message, code="ambiguous_length", headers={"connection": "close"})
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self.hosts and name.lower() not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            raise APIError(f"the host {name[:80]!r} is not this server: call it by {names}", 403)
        if self.key and scope["path"] not in self.public and scope.get("method") != "OPTIONS":
            scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not compare_digest(key.strip(), self.key):
                message = "this server needs its API key: send it as Authorization: Bearer KEY"
                raise APIError(message, 401, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    async def _read(self, scope: Scope, receive: Receive, sizes: list[int]) -> bytes | None:
        """Return the body; None if the client has left."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_body:
            raise self._too_large(is_sent=b"expect" not in headers)
        try:
            return await asyncio.wait_for(self._read_all(receive, sizes), BODY_SECONDS)
        except asyncio.TimeoutError:
            message = f"the body took more than {BODY_SECONDS:g} seconds: send it faster"
            raise APIError(message, 408) from None

    async def _read_all(self, receive: Receive, sizes: list[int]) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            body += piece
            sizes.append(len(piece))
            self.bytes += len(piece)
            if len(body) > self.max_body:
                raise self._too_large()
            if self.bytes > ALL_BODIES * self.max_body:
                text = "the bodies of other requests take all the room: try again in a second"
                raise APIError(text, 429, code="queue_full", headers={"retry-after": "1"})
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self, *, is_sent: bool = True) -> APIError:
        """Return the error of a body that is too large; the connection stays open while it is sent.

        The reset of a connection that is closed meanwhile would take the answer from the client.
        """
        message = f"the body has more than {self.max_body} bytes: send less, or start with another --max-body"
        headers = {} if is_sent else {"connection": "close"}
        return APIError(message, 413, code="body_too_large", headers=headers)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that hands on a body that has been read, once, and then what follows it."""
    left = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return replay

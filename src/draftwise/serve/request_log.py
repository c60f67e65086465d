"""One line of JSON and one count for every request, whatever became of it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager
from http import HTTPStatus
from time import monotonic
from typing import Any

from .metrics import Metrics
from .refusal import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger(f"{__package__}.requests")
FACTS = "draftwise.facts"  # where an ASGI scope holds what the line of its request says besides
LEFT = 499  # the status of a request whose client has left before its answer
REASONS = {0: "closed", LEFT: "client_left"}  # of statuses that no answer has


class RequestLog:
    """ASGI middleware around everything else. A line has no text but that of an error's message.

    `routes` are the paths that lines and counts name; others are `other`.
    """

    def __init__(self, app: App, metrics: Metrics, routes: Collection[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record what became of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = monotonic(), LEFT

        async def observe(message: MutableMapping[str, Any]) -> None:
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
        matched = getattr(scope.get("route"), "path", scope.get("path"))
        route = matched if matched in self.routes else "other"
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
        self.metrics.request(route, status, str(line["reason"]))


def facts_of(scope: Scope) -> dict[str, Any]:
    """Return what the line of a request says besides; every layer may add to that."""
    facts: dict[str, Any] = scope.setdefault(FACTS, {})
    return facts


def note_refusal(facts: dict[str, Any], refusal: Refusal) -> None:
    """Add why a request was refused, or its stream ended."""
    facts["reason"] = refusal.code or _reason(refusal.status)
    facts["message"] = refusal.message
    if refusal.param is not None:
        facts["param"] = refusal.param


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

"""What every request passes before a route sees it: its host, its key, and the size of its body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, MutableMapping
from hmac import compare_digest
from typing import Any

from .pages import page_files
from .refusal import Refusal
from .request_log import App, Receive, Scope, Send, facts_of, note_refusal

OPEN = frozenset({"/health", "/ready", *page_files()})  # need no key: they tell nothing of any text
BODY_SECONDS = 30.0  # within which a body must have arrived
BODIES = 16  # times the longest body: what all bodies together may hold


class Gate:
    """ASGI middleware. A whole body is read here, bounded in bytes and in seconds, and handed on as one.

    `hosts` are the names by which the server may be called; empty allows any. A page of another origin whose
    name was made to resolve to this machine is refused by that.
    """

    def __init__(self, app: App, *, key: str, body: int, hosts: Collection[str] = ()) -> None:
        self.app, self.key, self.body, self.hosts = app, key.encode(), body, frozenset(hosts)
        self.held = 0  # bytes of the bodies that are read or answered now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held: list[int] = []  # bytes of this body, piece by piece
        try:
            self._check(scope)
            body = await self._read(scope, receive, held)
            if body is not None:
                await self.app(scope, _again(body, receive), send)
        except Refusal as refusal:
            note_refusal(facts_of(scope), refusal)
            await refuse(refusal, send)
        finally:
            self.held -= sum(held)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            said = "the request has Content-Length and Transfer-Encoding: send one of them"  # RFC 9112, 6.3
            raise Refusal(said, code="ambiguous_length", headers={"connection": "close"})
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self.hosts and name.lower() not in self.hosts:
            known = ", ".join(sorted(self.hosts))
            raise Refusal(f"the host {name[:80]!r} is not this server: call it by {known}", 403)
        if self.key and scope["path"] not in OPEN and scope.get("method") != "OPTIONS":
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not compare_digest(given.strip(), self.key):
                said = "this server needs its API key: send it as Authorization: Bearer KEY"
                raise Refusal(said, 401, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    async def _read(self, scope: Scope, receive: Receive, held: list[int]) -> bytes | None:
        """The body; None if the client has gone."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.body:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._all(receive, held), BODY_SECONDS)
        except asyncio.TimeoutError:
            raise Refusal(f"the body took more than {BODY_SECONDS:g} seconds: send it faster", 408) from None

    async def _all(self, receive: Receive, held: list[int]) -> bytes | None:
        found = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            found += piece
            held.append(len(piece))
            self.held += len(piece)
            if len(found) > self.body:
                raise self._too_large()
            if self.held > BODIES * self.body:
                said = "the bodies of other requests take all the room: try again in a second"
                raise Refusal(said, 429, code="queue_full", headers={"retry-after": "1"})
            if not message.get("more_body", False):
                return bytes(found)

    def _too_large(self) -> Refusal:
        said = f"the body has more than {self.body} bytes: send less, or start with another --max-body"
        return Refusal(said, 413, code="body_too_large", headers={"connection": "close"})


def _again(body: bytes, receive: Receive) -> Receive:
    """Hands on a body that has been read, once, and then what follows it."""
    left = [body]

    async def again() -> MutableMapping[str, Any]:
        if not left:
            return await receive()
        return {"type": "http.request", "body": left.pop(), "more_body": False}

    return again


async def refuse(refusal: Refusal, send: Send) -> None:
    """Answer with an error."""
    text = json.dumps(refusal.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(text)), **refusal.headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": text})

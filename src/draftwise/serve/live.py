"""The live page and its data: the state of the server twice a second, to a few watchers at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from functools import cache
from importlib.resources import files
from time import monotonic
from typing import Any

from fastapi import FastAPI, Request, Response

from .errors import APIError
from .middleware import JsonResponse
from .service import Service, Stream
from .snapshot import RoundLog, Snapshots

STREAM = "/live"  # the address of a stream without an end
MAX_VIEWERS = 8
FRAME_SECONDS = 0.5  # between two frames
FRESH_SECONDS = 0.2  # for which a state is new enough, however many ask
KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# No script, style, picture or address but the server's own, nothing inline, and no frame around the page.
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Live:
    """The state of the server, for all who watch; without a watcher the engine knows nothing of it.

    All methods belong to the thread of the event loop; states are made in another thread, since they wait
    for the end of a step.
    """

    def __init__(self, service: Service) -> None:
        decoder, self.engine = service.decoder, service.engine
        self.rounds = RoundLog(self.engine)
        template = getattr(decoder.tokenizer, "chat_template", None)
        about = {"model": service.model, "window": service.parser.window, "chat": bool(template)}
        self.snapshots = Snapshots(self.engine, service.metrics, about)
        self.updated, self.newest = -FRESH_SECONDS, dict[str, Any]()
        self.taking: asyncio.Future[None] | None = None
        self.viewers = 0

    async def state(self) -> dict[str, Any]:
        """Return the newest state; a client that leaves meanwhile does not end its making."""
        is_idle = self.taking is None or self.taking.done()
        if is_idle and monotonic() - self.updated >= FRESH_SECONDS:
            self.taking = asyncio.ensure_future(self._take())
        if self.taking is not None:
            await asyncio.shield(self.taking)
        return self.newest | {"watchers": self.viewers}

    async def _take(self) -> None:
        rounds = self.rounds if self.viewers else None
        self.newest = await asyncio.to_thread(self.snapshots.take, rounds)
        self.updated = monotonic()

    def join(self) -> None:
        """Add a watcher, who must `leave`.

        Raises:
            APIError: there are too many, or the server is stopping.
        """
        if not self.engine.is_ready:
            raise APIError("the server is stopping: look again later", 503, code="server_stopping")
        if self.viewers >= MAX_VIEWERS:
            message = f"{self.viewers} clients watch already: close one, or use /stats"
            raise APIError(message, 429, code="too_many_watchers", headers={"retry-after": "10"})
        if not self.viewers:
            self.rounds = RoundLog(self.engine)
            self.engine.observers = [*self.engine.observers, self.rounds]  # a new list: the engine reads it
        self.viewers += 1

    def leave(self) -> None:
        """Remove a watcher; after the last the engine is left alone."""
        self.viewers -= 1
        if not self.viewers:
            self.engine.observers = [one for one in self.engine.observers if one is not self.rounds]

    async def watch(self) -> AsyncIterator[str]:
        """Yield states with the rounds since the last as server-sent events, until the server stops."""
        rounds, number = self.rounds, self.rounds.added
        while self.engine.is_ready:
            state = await self.state()
            rows, lost, number = rounds.rows_since(number)
            data = json.dumps(state | {"rounds": rows, "lost": lost}, allow_nan=False, separators=(",", ":"))
            yield f"event: state\ndata: {data}\n\n"
            await asyncio.sleep(FRAME_SECONDS)


def add_page(app: FastAPI, service: Service, origins: Collection[str]) -> None:
    """Add the routes of the page: its files, `/stats`, and `/live` for itself and pages of `origins`."""
    live = Live(service)

    @app.get("/stats")
    async def stats() -> Response:
        return JsonResponse(await live.state(), headers={"cache-control": "no-store"})

    @app.get(STREAM, include_in_schema=False)
    async def frames(request: Request) -> Response:
        check_origin(request.headers, origins)
        live.join()
        return Stream(live.watch(), live.leave)

    for address, (kind, content) in page_files().items():
        _add_file(app, address, kind, content)


def _add_file(app: FastAPI, address: str, kind: str, content: bytes) -> None:
    @app.get(address, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)


@cache
def page_files() -> dict[str, tuple[str, bytes]]:
    """Return kind and bytes of each file by its address; nothing else is ever read for a client."""
    contents = {}
    for file in (files(__package__) / "page").iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            address = "/" if file.name == "index.html" else f"/page/{file.name}"
            contents[address] = (kind, file.read_bytes())
    return contents


def check_origin(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Reject a page of another site, which could hold a stream open: browsers name the origin.

    Raises:
        APIError: it is a page of an origin that is not among `origins`.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
    if not is_own and not {origin, "*"} & set(origins):
        message = f"a page of {origin or 'another site'} may not watch: name its origin as --allow-origin"
        raise APIError(message, 403, code="foreign_origin")

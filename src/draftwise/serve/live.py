"""The live page and its data: the state of the server twice a second, to a few watchers at once."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from functools import cache
from importlib.resources import files
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from .errors import APIError
from .middleware import facts_of
from .service import Json, Service
from .snapshot import RoundLog, Snapshots

STREAM = "/live"  # the address of a stream without an end
MAX_VIEWERS = 8
FRAME_SECONDS = 0.5  # between two frames
MAX_FRAMES = 8  # kept for readers that are late; older ones are lost to them
PATIENCE = 30.0  # seconds within which a reader must take a frame
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
    """Makes a frame for all watchers together, as long as there is one.

    Without a watcher the engine knows nothing of it. All methods but `state` belong to the thread of the
    event loop; the frames are made in another thread, since they wait for the end of a step.
    """

    def __init__(self, service: Service) -> None:
        decoder, self.engine = service.decoder, service.engine
        self.rounds = RoundLog(self.engine)
        template = getattr(decoder.tokenizer, "chat_template", None)
        about = {"model": service.model, "window": service.parser.window, "chat": bool(template)}
        self.snapshots = Snapshots(self.engine, service.metrics, about)
        self.lock, self.updated, self.newest = asyncio.Lock(), -FRESH_SECONDS, dict[str, Any]()
        self.frames: deque[tuple[int, str]] = deque(maxlen=MAX_FRAMES)
        self.count = self.viewers = 0
        self.has_frame = asyncio.Event()
        self.ticking: asyncio.Task[None] | None = None

    async def state(self) -> dict[str, Any]:
        """Return the state of the server."""
        async with self.lock:
            if monotonic() - self.updated >= FRESH_SECONDS:
                rounds = self.rounds if self.viewers else None
                self.newest = await asyncio.to_thread(self.snapshots.take, rounds)
                self.updated = monotonic()
        return self.newest | {"watchers": self.viewers}

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
        self.viewers += 1
        if self.ticking is None or self.ticking.done():
            self.rounds = RoundLog(self.engine)
            self.engine.observers = [*self.engine.observers, self.rounds]  # a new list: the engine reads it
            self.ticking = asyncio.create_task(self._tick(self.rounds))

    def leave(self) -> None:
        """Remove a watcher; after the last the engine is left alone."""
        self.viewers -= 1
        if not self.viewers and self.ticking is not None:
            self.ticking.cancel()
            self.ticking = None

    async def watch(self) -> AsyncIterator[str]:
        """Yield frames as server-sent events until the server stops; a late reader misses the oldest."""
        read = self.count - 1 if self.frames else self.count  # the newest at once
        while self.ticking is not None and not self.ticking.done():
            frame = next((frame for frame in self.frames if frame[0] > read), None)
            if frame is None:
                await self.has_frame.wait()
            else:
                read = frame[0]
                yield frame[1]

    async def _tick(self, rounds: RoundLog) -> None:
        """Make a frame now and then, while the server serves."""
        try:
            while self.engine.is_ready:
                state = await self.state()
                rows, lost = rounds.take()
                state |= {"rounds": rows, "lost": lost}
                self.count += 1
                data = json.dumps(state, allow_nan=False, separators=(",", ":"))
                self.frames.append((self.count, f"event: state\nid: {self.count}\ndata: {data}\n\n"))
                self._ring()
                await asyncio.sleep(FRAME_SECONDS)
        finally:
            self.engine.observers = [one for one in self.engine.observers if one is not rounds]
            self.frames.clear()
            asyncio.get_running_loop().call_soon(self._ring)

    def _ring(self) -> None:
        self.has_frame.set()
        self.has_frame = asyncio.Event()


class Frames(StreamingResponse):
    """The stream of one watcher; one who reads nothing for `PATIENCE` seconds is cut off."""

    def __init__(self, live: Live) -> None:
        live.join()
        self.live = live
        super().__init__(live.watch(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send frames until either side ends; the place is free then."""
        self.facts = facts_of(scope)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.live.leave()

    async def stream_response(self, send: Any) -> None:
        """Send frames, each within the reader's time."""

        async def send_in_time(message: Any) -> None:
            await asyncio.wait_for(send(message), PATIENCE)

        try:
            await super().stream_response(send_in_time)
        except asyncio.TimeoutError:
            self.facts["reason"] = "slow_reader"


def add_page(app: FastAPI, service: Service, origins: Collection[str]) -> None:
    """Add the routes of the page: its files, `/stats`, and `/live` for itself and pages of `origins`."""
    live = Live(service)

    @app.get("/stats")
    async def stats() -> Response:
        return Json(await live.state(), headers={"cache-control": "no-store"})

    @app.get(STREAM, include_in_schema=False)
    async def frames(request: Request) -> Response:
        check_origin(request.headers, origins)
        return Frames(live)

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
        is_own = origin is None or urlsplit(origin).netloc == headers.get("host")
    if not is_own and not {origin, "*"} & set(origins):
        message = f"a page of {origin or 'another site'} may not watch: name its origin as --allow-origin"
        raise APIError(message, 403, code="foreign_origin")

"""The live page and its data: the state of the server twice a second, to a few watchers at once."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from .pages import HEADERS, page_files
from .refusal import Refusal
from .request_log import facts_of
from .service import Json, Service
from .snapshot import Snapshots
from .strips import Cell, Strips

ENDLESS = "/live"  # the address of a stream without an end
WATCHERS = 8  # at once
EVERY = 0.5  # seconds between two frames
FRAMES = 8  # kept for readers that are late; older ones are lost to them
PATIENCE = 30.0  # seconds within which a reader must take a frame
FRESH = 0.2  # seconds for which a state is new enough, however many ask


class Live:
    """Makes a frame for all watchers together, as long as there is one.

    Without a watcher the engine knows nothing of it. All methods but `state` belong to the thread of the
    event loop; the frames are made in another thread, since they wait for the end of a step.
    """

    def __init__(self, service: Service) -> None:
        decoder, self.engine = service.decoder, service.engine
        self.strips = Strips(self.engine)
        template = getattr(decoder.tokenizer, "chat_template", None)
        about = {"model": service.model, "window": service.reader.window, "chat": bool(template)}
        self.snapshots = Snapshots(self.engine, service.metrics, about)
        self.busy, self.taken, self.newest = asyncio.Lock(), -FRESH, dict[str, Any]()
        self.frames: deque[tuple[int, str]] = deque(maxlen=FRAMES)
        self.made = self.watchers = 0
        self.fresh = asyncio.Event()
        self.ticking: asyncio.Task[None] | None = None

    async def state(self) -> dict[str, Any]:
        """The state of the server."""
        async with self.busy:
            if monotonic() - self.taken >= FRESH:
                strips = self.strips if self.watchers else None
                self.newest = await asyncio.to_thread(self.snapshots.take, strips)
                self.taken = monotonic()
        return self.newest | {"watchers": self.watchers}

    def join(self) -> None:
        """One more watcher, who must `leave`.

        Raises:
            Refusal: there are too many, or the server is stopping.
        """
        if not self.engine.ready:
            raise Refusal("the server is stopping: look again later", 503, code="server_stopping")
        if self.watchers >= WATCHERS:
            said = f"{self.watchers} clients watch already: close one, or use /stats"
            raise Refusal(said, 429, code="too_many_watchers", headers={"retry-after": "10"})
        self.watchers += 1
        if self.ticking is None or self.ticking.done():
            self.strips = Strips(self.engine)
            self.engine.watchers = [*self.engine.watchers, self.strips]  # a new list: the engine reads it
            self.ticking = asyncio.create_task(self._tick(self.strips))

    def leave(self) -> None:
        """One watcher less; after the last the engine is left alone."""
        self.watchers -= 1
        if not self.watchers and self.ticking is not None:
            self.ticking.cancel()
            self.ticking = None

    async def watch(self) -> AsyncIterator[str]:
        """Frames as server-sent events until the server stops; a late reader misses the oldest."""
        read = self.made - 1 if self.frames else self.made  # the newest at once
        while self.ticking is not None and not self.ticking.done():
            found = [frame for frame in self.frames if frame[0] > read]
            if not found:
                await self.fresh.wait()
                continue
            read, frame = found[0]
            yield frame

    async def _tick(self, strips: Strips) -> None:
        """A frame now and then, while the server serves."""
        try:
            while self.engine.ready:
                state = await self.state()
                cells, lost = strips.take()
                state |= {"rounds": _packed(cells), "lost": lost}
                self.made += 1
                told = json.dumps(state, allow_nan=False, separators=(",", ":"))
                self.frames.append((self.made, f"event: state\nid: {self.made}\ndata: {told}\n\n"))
                self._ring()
                await asyncio.sleep(EVERY)
        finally:
            self.engine.watchers = [one for one in self.engine.watchers if one is not strips]
            self.frames.clear()
            asyncio.get_running_loop().call_soon(self._ring)

    def _ring(self) -> None:
        self.fresh.set()
        self.fresh = asyncio.Event()


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

        async def patiently(message: Any) -> None:
            await asyncio.wait_for(send(message), PATIENCE)

        try:
            await super().stream_response(patiently)
        except asyncio.TimeoutError:
            self.facts["reason"] = "slow_reader"


def add_page(app: FastAPI, service: Service, origins: Collection[str]) -> None:
    """The routes of the page: its files, `/stats`, and `/live` for itself and pages of `origins`."""
    live = Live(service)

    @app.get("/stats")
    async def stats() -> Response:
        return Json(await live.state(), headers={"cache-control": "no-store"})

    @app.get(ENDLESS, include_in_schema=False)
    async def frames(request: Request) -> Response:
        check_origin(request.headers, origins)
        return Frames(live)

    for address, (kind, content) in page_files().items():
        _file(app, address, kind, content)


def check_origin(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """See that no page of another site holds a stream open: browsers say who asks.

    Raises:
        Refusal: it is a page of an origin that is not among `origins`.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site is not None:
        own = site in ("same-origin", "none")
    else:
        own = origin is None or urlsplit(origin).netloc == headers.get("host")
    if not own and not {origin, "*"} & set(origins):
        said = f"a page of {origin or 'another site'} may not watch: name its origin as --allow-origin"
        raise Refusal(said, 403, code="foreign_origin")


def _file(app: FastAPI, address: str, kind: str, content: bytes) -> None:
    @app.get(address, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)


def _packed(cells: list[Cell]) -> list[list[Any]]:
    """Cells as short rows: request, drafter, drafted, guessed, the target's own, whether the text is over."""
    return [[c.request, c.drafter, c.drafted, c.guessed, c.own, int(c.done)] for c in cells]

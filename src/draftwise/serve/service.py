"""Answers requests with the engine's texts, whole or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from ..generation.decoder import Decoder
from . import responses
from .answers import Answer, metrics
from .engine import Engine
from .fields import Chat, Completion, Settings
from .forms import Form
from .items import Responses, chat, renamed
from .limits import Limits
from .metrics import Metrics
from .refusal import Refusal
from .request_log import LEFT, facts_of, note_refusal
from .sandbox import Connection
from .schedule import Client
from .settings import Grammar
from .texts import Event, Text
from .wishes import Asked, Reader

LATER = 10.0  # seconds that a client has to read the end of a stream after its text must be over
COMPILERS, EACH = 8, 2  # grammars that are compiled at once, and those of one client among them
MOST_COMPILED = 32  # grammars of one client that may wait for it
T = TypeVar("T")


class Json(JSONResponse):
    """JSON with every character outside ASCII escaped: also half a character that a client sent."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class Stream(StreamingResponse):
    """Server-sent events; the connection of a client that reads too slowly is cut after `seconds`.

    `end` is called once nothing more is sent, also where nothing was.
    """

    def __init__(self, events: AsyncIterator[str], seconds: float, end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self.seconds, self.end, self.reason = seconds, end, "client_left"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send events until either side ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.end()
            if self.reason:
                facts_of(scope)["reason"] = self.reason

    async def stream_response(self, send: Any) -> None:
        """Send all events, or as many as the client takes in time."""
        try:
            await asyncio.wait_for(super().stream_response(send), self.seconds)
            self.reason = ""
        except asyncio.TimeoutError:
            self.reason = "slow_reader"


class Service:
    """A decoder behind its routes: one model, its engine, and what turns bodies into texts and back.

    Prompts are read in one thread of their own, so that a long one delays neither the steps nor other
    clients' events.
    """

    def __init__(self, decoder: Decoder, model: str, limits: Limits) -> None:
        self.decoder, self.model, self.limits = decoder, model, limits
        self.engine = Engine(decoder, limits)
        self.reader = Reader(decoder, limits, seed=decoder.seed)
        self.metrics = Metrics(self.engine, model, self.reader.window)
        self.engine.watchers.append(self.metrics)
        self.reading = ThreadPoolExecutor(1, "draftwise-prompts")
        self.compiling = ThreadPoolExecutor(COMPILERS, "draftwise-grammars")
        self.asking = Counter[str]()  # grammars that are compiled now, or wait for it, by client
        self.turns = WeakValueDictionary[str, asyncio.Semaphore]()

    def check(self, model: str | None) -> None:
        """See that a request names this model.

        Raises:
            Refusal: it names another.
        """
        if model is not None and model != self.model:
            said = f"no model {model[:80]!r}: this server has {self.model!r}"
            raise Refusal(said, 404, code="model_not_found", param="model")

    async def read(self, what: Callable[..., T], *given: Any) -> T:
        """Call something that reads text, in the thread for that."""
        return await asyncio.get_running_loop().run_in_executor(self.reading, partial(what, *given))

    async def completion(self, body: Completion, request: Request) -> Response:
        """The answer to `/v1/completions`."""
        self.check(body.model)
        return await self._answer(self._asked(self.reader.completion, body, request), request, body)

    async def chat(self, body: Chat, request: Request) -> Response:
        """The answer to `/v1/chat/completions`."""
        self.check(body.model)
        return await self._answer(self._asked(self.reader.chat, body, request), request, body)

    def close(self) -> None:
        """End the threads and the process that read what clients send."""
        self.reading.shutdown(wait=False, cancel_futures=True)
        self.compiling.shutdown(wait=False, cancel_futures=True)
        self.reader.grammars.close()

    async def _asked(self, read: Callable[..., Asked], body: Any, request: Request) -> Asked:
        """What a body asks for; a grammar is compiled before, while others are served."""
        form = await self.read(self.reader.form, body)
        return await self.read(read, body, None if form is None else await self._compiled(form, request))

    async def _compiled(self, form: Form, request: Request) -> Grammar:
        """The grammar of a form; what compiles it ends with the request, and no client holds up another."""
        client = request.client.host if request.client else ""
        if self.asking[client] >= MOST_COMPILED:
            said = f"{self.asking[client]} grammars wait to be compiled: try again in a second"
            raise Refusal(said, 429, code="queue_full", headers={"retry-after": "1"})
        self.asking[client] += 1
        try:
            turn = self.turns.setdefault(client, asyncio.Semaphore(EACH))
            async with turn:
                with closing(Connection()) as connection:
                    loop, make = asyncio.get_running_loop(), self.reader.grammars.made
                    return await loop.run_in_executor(self.compiling, make, form, connection)
        finally:
            self.asking[client] -= 1
            self.asking += Counter()  # without those at 0

    async def responses(self, body: Responses, request: Request) -> Response:
        """The answer to `/v1/responses`."""
        self.check(body.model)
        kind = partial(responses.Response, body=body)
        return await self._answer(self._chat(body, request), request, body, kind)

    async def _chat(self, body: Responses, request: Request) -> Asked:
        """What a body asks for by the chat that it stands for."""
        try:
            return replace(await self._asked(self.reader.chat, chat(body), request), usage=True)
        except Refusal as refusal:
            raise renamed(refusal) from None

    async def _answer(
        self,
        asking: Awaitable[Asked],
        request: Request,
        body: Settings | Responses,
        kind: Callable[..., Answer] = Answer,
    ) -> Response:
        address = request.client.host if request.client else ""
        client = Client(address, body.safety_identifier or body.user or "")
        gone = asyncio.ensure_future(_gone(request))
        try:
            asked = await _either(asking, gone)
            facts = facts_of(request.scope)
            return _left() if asked is None else await self._written(asked, client, gone, kind, facts)
        finally:
            gone.cancel()

    async def _written(
        self,
        asked: Asked,
        client: Client,
        gone: asyncio.Future[None],
        kind: Callable[..., Answer],
        facts: dict[str, Any],
    ) -> Response:
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def sink(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        seconds = self.limits.timeout
        texts = self.engine.submit(asked.wishes, sink, seconds, client)
        answer = kind(asked, self.model, self.reader.names)
        end, streamed = partial(self._over, answer, texts, facts), False
        try:
            first = await _either(events.get(), gone)
            if asked.stream and first is not None:
                if first.refusal is not None:
                    raise first.refusal
                streamed = True
                return Stream(self._stream(answer, texts, events, first, facts), seconds + LATER, end)
            return await self._whole(answer, texts, events, first, gone)
        finally:
            if not streamed:
                end()

    async def _whole(
        self,
        answer: Answer,
        texts: list[Text],
        events: asyncio.Queue[Event],
        event: Event | None,
        gone: asyncio.Future[None],
    ) -> Response:
        found: list[list[Event]] = [[] for _ in texts]
        left = len(texts)
        while event is not None:
            if event.refusal is not None:
                raise event.refusal
            found[event.place].append(event)
            left -= event.last
            if not left:
                return Json(answer.whole(texts, found))
            event = await _either(events.get(), gone)
        return _left()

    async def _stream(
        self,
        answer: Answer,
        texts: list[Text],
        events: asyncio.Queue[Event],
        event: Event,
        facts: dict[str, Any],
    ) -> AsyncIterator[str]:
        left, begun = len(texts), set[int]()
        for chunk in answer.openings(texts):
            yield answer.sent(chunk)
        while True:
            if event.refusal is not None:
                note_refusal(facts, event.refusal)
                yield answer.sent(answer.failed(event.refusal))
                break
            chunks = answer.chunks(texts[event.place], event, first=event.place not in begun)
            if answer.asked.drafters and chunks and event.pieces:
                pieces = [[piece.source, piece.text] for piece in event.pieces]
                chunks[0]["draftwise"] = {"pieces": pieces}
            for chunk in chunks:
                yield answer.sent(chunk)
            begun.add(event.place)
            left -= event.last
            if not left:
                if answer.asked.usage:
                    yield answer.sent(answer.last(texts))
                break
            event = await events.get()
        yield answer.end

    def _over(self, answer: Answer, texts: list[Text], facts: dict[str, Any]) -> None:
        """The request is answered, refused, or its client has gone."""
        self.engine.leave([text for text in texts if not text.over])
        facts |= {
            "id": answer.id,
            "texts": len(texts),
            "prompt_tokens": answer.asked.prompt_tokens,
            "tokens": sum(text.stats.tokens for text in texts),
            "finished": sum(text.over for text in texts),
            "metrics": metrics(texts),
        }


def _left() -> Response:
    """The answer to a client that has gone."""
    return Response(status_code=LEFT)


async def _gone(request: Request) -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _either(what: Awaitable[T], gone: asyncio.Future[None]) -> T | None:
    """What is waited for, or None if the client has gone before: what has not begun is then left out."""
    waiting = asyncio.ensure_future(what)
    both: set[asyncio.Future[Any]] = {waiting, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        waiting.cancel()

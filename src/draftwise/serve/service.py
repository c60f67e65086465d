"""Answers requests with the engine's sequences, whole or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from ..generation.decoder import Decoder
from .answers import Answer, ChatAnswer, metrics
from .bodies import Chat, Completion, Responses, SamplingBody
from .engine import Engine
from .errors import APIError
from .generations import Client, Event, merge_events
from .grammar import MakeConstraint
from .limits import Limits
from .metrics import Metrics
from .middleware import CLIENT_LEFT, JsonResponse, facts_of, note_error
from .requests import ParsedRequest, RequestParser
from .responses import ItemAnswer, as_chat, rename_fields
from .sandbox import Connection, Form

COMPILERS, PER_CLIENT = 8, 2  # grammars that are compiled at once, and those of one client among them
T = TypeVar("T")
Parse = Callable[[], Awaitable[ParsedRequest]]


class Stream(StreamingResponse):
    """Server-sent events; `end` is called once nothing more is sent, also where nothing was."""

    is_complete = False

    def __init__(self, events: AsyncIterator[str], end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self.end = end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.end()
            if not self.is_complete:
                facts_of(scope).setdefault("reason", "client_left")

    async def stream_response(self, send: Any) -> None:
        await super().stream_response(send)
        self.is_complete = True


@dataclass
class Exchange:
    """One request whose sequences are being written."""

    answer: Answer
    facts: dict[str, Any]
    events: asyncio.Queue[Event]

    async def whole(self) -> Response:
        events: list[list[Event]] = [[] for _ in self.answer.sequences]
        while not all(own and own[-1].is_last for own in events):
            event = await self.events.get()
            if event.error is not None:
                raise event.error
            events[event.index].append(event)
        return JsonResponse(self.answer.whole([merge_events(own) for own in events]))

    async def stream(self, event: Event) -> AsyncIterator[str]:
        """Yield the answer's server-sent events, which begin with this event."""
        answer, left = self.answer, len(self.answer.sequences)
        unsent = defaultdict[int, list[Any]](list)  # pieces, by sequence
        for chunk in answer.opening_chunks():
            yield answer.to_event(chunk)
        while True:
            if event.error is not None:
                note_error(self.facts, event.error)
                yield answer.to_event(answer.error_chunk(event.error))
                break
            chunks = answer.chunks(event)
            if answer.parsed.stream.include_drafters:
                unsent[event.index] += [[piece.source, piece.text] for piece in event.pieces]
                if chunks and unsent[event.index]:
                    chunks[0]["draftwise"] = {"pieces": unsent.pop(event.index)}
            left -= event.is_last
            for chunk in chunks if left else [*chunks, *answer.closing_chunks()]:
                yield answer.to_event(chunk)
            if not left:
                break
            event = await self.events.get()
        yield answer.end

    def end(self, engine: Engine) -> None:
        """Note the outcome: the request is answered, refused, or its client has left."""
        sequences, usage = self.answer.sequences, self.answer.usage()
        engine.abandon([sequence for sequence in sequences if not sequence.is_over])
        self.facts |= {
            "id": self.answer.id,
            "texts": len(sequences),
            "prompt_tokens": usage["prompt_tokens"],
            "tokens": usage["completion_tokens"],
            "finished": sum(sequence.is_over for sequence in sequences),
            "metrics": metrics(sequences),
        }


class Service:
    """A decoder behind its routes: one model, its engine, and the way from bodies to sequences and back.

    Prompts are read in one thread of their own, so that a long one delays neither the steps nor other
    clients' events.
    """

    def __init__(self, decoder: Decoder, model: str, limits: Limits) -> None:
        self.decoder, self.model, self.limits = decoder, model, limits
        self.engine = Engine(decoder, limits)
        self.parser = RequestParser(decoder, limits)
        self.metrics = Metrics(self.engine, model, self.parser.window)
        self.engine.observers.append(self.metrics)
        self.reading = ThreadPoolExecutor(1, "draftwise-prompts")
        self.compilers = ThreadPoolExecutor(COMPILERS, "draftwise-grammars")
        self.turns = WeakValueDictionary[str, asyncio.Semaphore]()

    def close(self) -> None:
        """End the threads and the process that read what clients send."""
        self.reading.shutdown(wait=False, cancel_futures=True)
        self.compilers.shutdown(wait=False, cancel_futures=True)
        self.parser.grammars.close()

    def check_model(self, model: str | None) -> None:
        """Reject a request that names another model."""
        if model is not None and model != self.model:
            message = f"no model {model[:80]!r}: this server has {self.model!r}"
            raise APIError(message, 404, code="model_not_found", param="model")

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that reads text, in the thread for that."""
        return await asyncio.get_running_loop().run_in_executor(self.reading, partial(function, *arguments))

    # -- the routes that generate ---------------------------------------------------------------------

    async def completions(self, body: Completion, request: Request) -> Response:
        parse = partial(self._parse, self.parser.parse_completion, body, request)
        return await self._answer(body, request, parse, Answer)

    async def chat(self, body: Chat, request: Request) -> Response:
        parse = partial(self._parse, self.parser.parse_chat, body, request)
        return await self._answer(body, request, parse, ChatAnswer)

    async def responses(self, body: Responses, request: Request) -> Response:
        async def parse() -> ParsedRequest:
            try:
                return await self._parse(self.parser.parse_chat, as_chat(body), request)
            except APIError as error:
                raise rename_fields(error) from None

        return await self._answer(body, request, parse, partial(ItemAnswer, request=body))

    async def _parse(self, parse: Callable[..., ParsedRequest], body: Any, request: Request) -> ParsedRequest:
        """Parse a body; a grammar is compiled before, while others are served."""
        form = await self.read(self.parser.parse_form, body)
        return await self.read(parse, body, None if form is None else await self._compile(form, request))

    async def _compile(self, form: Form, request: Request) -> MakeConstraint:
        """Compile a form; the compiler ends with the request, and no client holds up another."""
        turn = self.turns.setdefault(address_of(request), asyncio.Semaphore(PER_CLIENT))
        loop, compile = asyncio.get_running_loop(), self.parser.grammars.compile
        async with turn:
            with closing(Connection()) as connection:
                return await loop.run_in_executor(self.compilers, compile, form, connection)

    async def _answer(
        self, body: SamplingBody, request: Request, parse: Parse, make_answer: Callable[..., Answer]
    ) -> Response:
        """Answer a request, unless its client leaves before."""
        self.check_model(body.model)
        answering = asyncio.ensure_future(self._write(body, request, parse, make_answer))
        client_left = asyncio.ensure_future(wait_disconnect(request))
        try:
            await asyncio.wait({answering, client_left}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            answering.cancel()
            await asyncio.wait({answering})  # what it leaves in the facts of the request is for its line
            return Response(status_code=CLIENT_LEFT)
        finally:
            answering.cancel()
            client_left.cancel()

    async def _write(
        self, body: SamplingBody, request: Request, parse: Parse, make_answer: Callable[..., Answer]
    ) -> Response:
        parsed = await parse()
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        client = Client(address_of(request), body.safety_identifier or body.user or "")
        sequences = self.engine.submit(parsed.sequences, emit, client)
        answer = make_answer(parsed, sequences, self.model, self.parser.token_texts)
        exchange = Exchange(answer, facts_of(request.scope), events)
        end, is_stream = partial(exchange.end, self.engine), False
        try:
            if not parsed.body.stream:
                return await exchange.whole()
            first = await events.get()
            if first.error is not None:
                raise first.error
            is_stream = True
            return Stream(exchange.stream(first), end)
        finally:
            if not is_stream:
                end()


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


async def wait_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

"""The thread that owns the decoder: texts join and leave between its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from logging import getLogger
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import Protocol

from ..core.request_round import ERROR
from ..core.round import Round
from ..errors import one_line
from ..generation.decoder import Decoder
from .limits import Limits
from .refusal import Refusal, failed, reason, stopping, too_late
from .schedule import NOBODY, Client, DraftLimit, give_row, next_prompt
from .texts import Event, Sink, Text, Wish

LOG = getLogger(__name__)
SAVE_SECONDS = 10.0  # between two writes of the state file
LATE = 0.2  # seconds that reading prompts may take between two steps, and a piece
ANSWER = 5.0  # seconds a text is taken to need before any has ended


class Watcher(Protocol):
    """Who is told what happens, in the engine's thread: metrics and the live page."""

    def round(self, text: Text, round: Round, gap: float) -> None:
        """A text wrote something, `gap` seconds after it last did; 0 for the first time."""
        ...

    def end(self, text: Text, event: Event) -> None:
        """A text has ended, or left before."""
        ...


class Engine:
    """Runs a decoder for many clients.

    `submit`, `stop` and the properties may be used by any thread; everything else happens in the engine's own
    thread, between two steps: a text whose client is gone has left before the next step begins.
    """

    def __init__(self, decoder: Decoder, limits: Limits, watchers: Sequence[Watcher] = ()) -> None:
        self.decoder, self.limits, self.watchers = decoder, limits, list(watchers)
        self.waiting: list[Text] = []
        self.running: list[Text] = []  # some of them may be paused: their rows are others' for a while
        self.requests, self.pieces, self.draft_limit = count(), 0, DraftLimit()
        self.steps, self.took = 0, 0.0  # seconds of the latest step
        self.seconds = ANSWER  # of a text in the batch, on average
        self.cut_at: float | None = None  # when whatever still runs is cut; None while the server serves
        self._bell, self._unsaved, self._saved = Condition(), False, monotonic()
        self._changed = False  # a text has come or ended since the rows were shared out
        self.thread = Thread(target=self._run, name="draftwise-engine", daemon=True)

    # -- for any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    @property
    def ready(self) -> bool:
        """Whether new texts are taken."""
        return self.thread.is_alive() and self.cut_at is None

    @property
    def free(self) -> int:
        """How many more texts would be taken now."""
        room = self.limits.batch + self.limits.queue
        return room - len(self.running) - len(self.waiting)

    def submit(
        self, wishes: Sequence[Wish], sink: Sink, seconds: float, client: Client = NOBODY
    ) -> list[Text]:
        """Queue the texts of one request; their events go to `sink`, in the engine's thread.

        Raises:
            Refusal: the queue is full, or the server is stopping.
        """
        with self._bell:
            if not self.ready:
                raise stopping()
            mine = sum(text.owner[0] == client.address for text in (*self.running, *self.waiting))
            if len(wishes) > min(self.free, self.limits.one_client - mine):
                raise self._full(len(wishes))
            deadline, owner = monotonic() + seconds, (*client, next(self.requests))
            texts = [Text(wish, place, sink, deadline, seconds, owner) for place, wish in enumerate(wishes)]
            self.waiting += texts
            self._changed = True
            self._bell.notify()
        return texts

    def leave(self, texts: Sequence[Text]) -> None:
        """The client of these texts has gone: whatever is not over leaves before the next step."""
        for text in texts:
            text.gone = True
        with self._bell:
            self._bell.notify()

    def stop(self, *, seconds: float) -> None:
        """Take no more texts, give those there are `seconds` to finish, then cut them."""
        with self._bell:
            at = monotonic() + seconds
            self.cut_at = at if self.cut_at is None else min(at, self.cut_at)
            self._bell.notify()

    def join(self) -> None:
        """Wait until the thread has ended and what was learnt is saved."""
        if self.thread.ident is not None:
            self.thread.join()

    def _full(self, n: int) -> Refusal:
        room = self.limits.one_client
        if n > room:
            said = f"{n} texts in one request: this server takes at most {room} at once"
            return Refusal(said, 400, param="n")
        ahead = len(self.waiting) / self.limits.batch + 0.5
        wait = str(max(1, min(60, round(self.seconds * ahead))))
        said = f"{len(self.waiting)} texts are waiting already: try again in {wait} seconds"
        return Refusal(said, 429, code="queue_full", headers={"retry-after": wait})

    # -- the engine's own thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._drop()
                self._admit()
                self._read()
                self._step()
                self._save()
        finally:
            for text in [*self.running, *self.waiting]:
                self._end(text, Event(text.place, refusal=stopping()))
            self._save(now=True)

    def _wait(self) -> bool:
        """Sleep until there is work; False when the thread is to end."""
        with self._bell:
            while not self.running and not self.waiting:
                if self.cut_at is not None:
                    return False
                self._bell.wait(SAVE_SECONDS if self._unsaved else None)
                if self._unsaved:
                    return True
            return self.cut_at is None or monotonic() < self.cut_at

    def _drop(self) -> None:
        """End the texts whose client has gone, and those that took too long."""
        now = monotonic()
        with self._bell:
            texts = [*self.running, *self.waiting]
        for text in texts:
            if text.gone:
                self._end(text, Event(text.place, reason="abort"))
            elif now > text.deadline:
                self._end(text, Event(text.place, refusal=too_late(text.seconds)))

    def _admit(self) -> None:
        """Share out the rows, when a text has come or ended."""
        while self._changed:
            with self._bell:
                text = give_row(self.running, self.waiting, self.limits.batch)
                self._changed = text is not None
                if text is None or text in self.running:
                    continue
                self.waiting.remove(text)
                self.running.append(text)
            self._join(text)

    def _join(self, text: Text) -> None:
        text.times.joined = monotonic()
        with self._guarded(text):
            if text.wish.scored is not None and len(text.wish.prompt) > 1:
                text.scoring = self.decoder.loop.score(text.wish.prompt, text.wish.scored)
            else:
                self._open(text)

    def _open(self, text: Text) -> None:
        """The text joins the batch, or is over if nothing is to be written."""
        wish = text.wish
        if not wish.written:
            self._end(text, Event(text.place, reason="length"))
            return
        request = self.decoder.loop.add(
            wish.prompt,
            wish.sampling,
            without=wish.without,
            max_draft=wish.longest,
            deterministic=wish.picked,
            arm=wish.arm,
        )
        text.begin(self.decoder.tokenizer, request)
        text.reading = True

    def _read(self) -> None:
        """Pieces of prompts, and then as many of the texts that drafters have still to read, or one."""
        for _ in range(max(1, self._prompts())):
            if not self.decoder.loop.prepare():
                return

    def _prompts(self) -> int:
        """Pieces of prompts, in turns: at least one, and more while many texts wait for few.

        Reading takes as much of the time as the texts that wait are of all, and the next step is late by no
        more than `LATE` seconds and one piece. Returns the number of pieces.
        """
        active = [text for text in self.running if not text.paused]
        reading = [text for text in active if text.unread]
        steps = len(reading) / max(1, len(active) - len(reading))
        until, before = perf_counter() + min(steps * self.took, LATE), self.pieces
        while reading:
            text = next_prompt(reading, self.pieces)
            with self._guarded(text):
                self._piece(text)
            self.pieces += 1
            if perf_counter() >= until:
                break
            reading = [text for text in reading if text.unread and not text.over]
        return self.pieces - before

    def _piece(self, text: Text) -> None:
        """One piece of one prompt."""
        if text.scoring is None:
            assert text.request is not None
            text.reading = self.decoder.loop.read(text.request)
        elif (piece := next(text.scoring, None)) is not None:
            text.scores += piece
        else:
            text.scoring = None
            self._open(text)

    def _step(self) -> None:
        active = [text for text in self.running if not (text.paused or text.reading)]
        ready = {text.request.id: text for text in active if text.request is not None}
        if not ready:
            return
        limit = self.draft_limit.apply([*ready.values()])
        began = perf_counter()
        try:
            rounds = self.decoder.loop.step([t.request for t in ready.values() if t.request is not None])
        except Exception as error:  # nothing of the step is certain: none of its texts can continue
            LOG.exception("a step failed")
            for text in ready.values():
                self._end(text, Event(text.place, refusal=failed(one_line(error))))
            return
        self.took = perf_counter() - began
        self.steps += 1
        self.draft_limit.add(limit, self.took)
        for round in rounds:
            self._tell(ready[round.request], round)

    def _tell(self, text: Text, round: Round) -> None:
        with self._guarded(text):
            before = text.times.last
            event = text.add(round)
            for watcher in self.watchers:
                watcher.round(text, round, text.times.last - before if before else 0.0)
            if round.finish_reason == ERROR:
                event = Event(text.place, refusal=reason(round.error))
            if event.last:
                self._end(text, event)
            elif event.pieces or event.entries:
                text.sink(event)

    @contextmanager
    def _guarded(self, text: Text) -> Iterator[None]:
        """What raises within ends one text and no other."""
        try:
            yield
        except Exception as error:
            self._end(text, Event(text.place, refusal=reason(error)))

    def _end(self, text: Text, event: Event) -> None:
        """A text leaves: its row is free at once."""
        if text.over:
            return
        text.over, text.times.ended = True, monotonic()
        if text.scoring is not None:
            text.scoring.close()
            text.scoring = None
        if text.request is not None:
            self.decoder.loop.close(text.request)
        with self._bell:
            self._changed = True
            if text in self.running:
                self.running.remove(text)
            else:
                self.waiting.remove(text)
        if text.times.joined:
            self.seconds += 0.1 * (text.times.ended - text.times.joined - self.seconds)
        self._unsaved = True
        for watcher in self.watchers:
            watcher.end(text, event)
        text.sink(event)

    def _save(self, *, now: bool = False) -> None:
        """Save what was learnt, now and then, and again after an error, which is a warning."""
        state = self.decoder.state
        if state is None or not self._unsaved:
            self._unsaved = False
            return
        if now or monotonic() - self._saved >= SAVE_SECONDS:
            with self.decoder.loop.lock:
                self._unsaved = not state.keep()
            self._saved = monotonic()

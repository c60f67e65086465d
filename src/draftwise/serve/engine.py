"""The thread that owns the decoder: sequences join and leave between its steps."""

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
from ..errors import pluralize
from ..generation.decoder import Decoder
from ..state.file import Saver
from .errors import APIError, generation_failed, server_stopping, timed_out
from .generations import (
    NOBODY,
    Client,
    DraftLimit,
    Emit,
    Event,
    Generation,
    GenerationRequest,
    give_row,
    next_prompt,
)
from .limits import Limits

LOG = getLogger(__name__)
SAVE_SECONDS = 10.0  # between two writes of the state file
PREFILL_SECONDS = 0.2  # that reading prompts may take between two steps, and a piece
ANSWER_SECONDS = 5.0  # that a sequence is taken to need before any has ended


class Observer(Protocol):
    """Is told what happens, in the engine's thread: metrics and the live page."""

    def add_round(self, sequence: Generation, round: Round, gap: float) -> None:
        """Note that a sequence was written to, `gap` seconds after the last time; 0 for the first time."""
        ...

    def add_end(self, sequence: Generation, event: Event) -> None:
        """Note that a sequence has ended, or its client left before."""
        ...


class Engine:
    """Runs a decoder for many clients.

    `submit`, `stop` and the properties may be used by any thread; everything else happens in the engine's own
    thread, between two steps: a sequence whose client has left is closed before the next step begins.
    """

    def __init__(self, decoder: Decoder, limits: Limits) -> None:
        self.decoder, self.limits = decoder, limits
        self.observers: list[Observer] = []
        self.waiting: list[Generation] = []
        self.running: list[Generation] = []  # some of them may be paused: their rows are others' for a while
        self.requests, self.pieces, self.draft_limit = count(), 0, DraftLimit()
        self.steps, self.step_seconds = 0, 0.0  # of the latest step
        self.answer_seconds = ANSWER_SECONDS  # of a sequence in the batch, on average
        self.cut_at: float | None = None  # when whatever still runs is cut; None while the server serves
        self._bell, self._unsaved, self._saved = Condition(), False, monotonic()
        self._saver = None if decoder.state is None else Saver(decoder.state)
        self._rows_due = False  # a sequence has come or ended since the rows were shared out
        # It ends once what was learnt is saved.
        self.thread = Thread(target=self._run, name="draftwise-engine", daemon=True)

    # -- for any thread ---------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """True while new sequences are taken."""
        return self.thread.is_alive() and self.cut_at is None

    def submit(
        self, specs: Sequence[GenerationRequest], emit: Emit, client: Client = NOBODY
    ) -> list[Generation]:
        """Queue the sequences of one request; their events go to `emit`, in the engine's thread.

        Raises:
            APIError: the queue is full, or the server is stopping.
        """
        with self._bell:
            if not self.is_ready:
                raise server_stopping()
            everyone = [*self.running, *self.waiting]
            room = self.limits.batch + self.limits.queue - len(everyone)
            own = sum(sequence.owner[0] == client.address for sequence in everyone)
            if len(specs) > min(room, self.limits.one_client - own):
                ahead = len(self.waiting) / self.limits.batch + 0.5
                wait = max(1, min(60, round(self.answer_seconds * ahead)))
                waiting, seconds = pluralize(len(self.waiting), "text"), pluralize(wait, "second")
                message = f"{waiting} waiting already: try again in {seconds}"
                raise APIError(message, 429, code="queue_full", headers={"retry-after": str(wait)})
            deadline, owner = monotonic() + self.limits.timeout, (*client, next(self.requests))
            sequences = [Generation(spec, k, emit, deadline, owner) for k, spec in enumerate(specs)]
            self.waiting += sequences
            self._rows_due = True
            self._bell.notify()
        return sequences

    def abandon(self, sequences: Sequence[Generation]) -> None:
        """Close what is not over of these sequences before the next step: their client has left."""
        for sequence in sequences:
            sequence.is_abandoned = True
        with self._bell:
            self._bell.notify()

    def stop(self, *, seconds: float) -> None:
        """Take no more sequences, give those there are `seconds` to finish, then cut them."""
        with self._bell:
            at = monotonic() + seconds
            self.cut_at = at if self.cut_at is None else min(at, self.cut_at)
            self._bell.notify()

    # -- the engine's own thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._close_late()
                self._admit()
                self._read()
                self._step()
                self._save()
        finally:
            self.stop(seconds=0)  # also after a fault: what came now would wait forever
            for sequence in [*self.running, *self.waiting]:
                self._end(sequence, Event(sequence.index, error=server_stopping()))
            self._save(now=True)

    def _wait(self) -> bool:
        """Sleep until there is work; False when the thread is to end."""
        with self._bell:
            while not self.running and not self.waiting:
                if self.cut_at is not None:
                    return False
                self._bell.wait(SAVE_SECONDS if self._is_saving() else None)
                if self._is_saving():
                    return True
            return self.cut_at is None or monotonic() < self.cut_at

    def _close_late(self) -> None:
        """End the sequences whose client has left, and those that took too long."""
        now = monotonic()
        with self._bell:
            sequences = [*self.running, *self.waiting]
        for sequence in sequences:
            if sequence.is_abandoned:
                self._end(sequence, Event(sequence.index, finish_reason="abort"))
            elif now > sequence.deadline:
                self._end(sequence, Event(sequence.index, error=timed_out(self.limits.timeout)))

    def _admit(self) -> None:
        """Share out the rows, when a sequence has come or ended."""
        while self._rows_due:
            with self._bell:
                sequence = give_row(self.running, self.waiting, self.limits.batch)
                self._rows_due = sequence is not None
                if sequence is None or sequence in self.running:
                    continue
                self.waiting.remove(sequence)
                self.running.append(sequence)
            sequence.times.joined = monotonic()
            with self._guard(sequence):
                spec = sequence.spec
                sequence.is_scoring = spec.prompt_scores is not None and len(spec.prompt) > 1
                if not sequence.is_scoring:
                    self._open(sequence)

    def _open(self, sequence: Generation) -> None:
        """Add a sequence to the batch, or end it if nothing is to be written."""
        spec = sequence.spec
        if not spec.has_output:
            self._end(sequence, Event(sequence.index, finish_reason="length"))
            return
        request = self.decoder.loop.add(
            spec.prompt,
            spec.sampling,
            without=spec.excluded,
            max_draft=spec.max_draft,
            deterministic=spec.is_deterministic,
            arm=spec.arm,
        )
        sequence.begin(self.decoder.tokenizer, request)

    def _read(self) -> None:
        """Read pieces of prompts, and then as many of the texts that drafters have still to read, or one."""
        for _ in range(max(1, self._read_prompts())):
            if not self.decoder.loop.prepare():
                return

    def _read_prompts(self) -> int:
        """Read pieces of prompts, in turns: at least one, and more while many sequences wait for few.

        Reading takes as much of the time as the sequences that wait are of all, and the next step is late by
        no more than `PREFILL_SECONDS` and one piece. Returns the number of pieces.
        """
        active = [sequence for sequence in self.running if not sequence.is_paused]
        reading = [sequence for sequence in active if sequence.reads_prompt]
        steps = len(reading) / max(1, len(active) - len(reading))
        until = perf_counter() + min(steps * self.step_seconds, PREFILL_SECONDS)
        before = self.pieces
        while reading:
            sequence = next_prompt(reading, self.pieces)
            with self._guard(sequence):
                self._read_piece(sequence)
            self.pieces += 1
            if perf_counter() >= until:
                break
            reading = [one for one in reading if one.reads_prompt and not one.is_over]
        return self.pieces - before

    def _read_piece(self, sequence: Generation) -> None:
        loop, scores = self.decoder.loop, sequence.spec.prompt_scores
        if not sequence.is_scoring:
            assert sequence.request is not None
            sequence.is_prefilling = loop.read(sequence.request)
        elif scores is None or not scores.read(loop, sequence.spec.prompt):
            sequence.is_scoring = False
            self._open(sequence)

    def _step(self) -> None:
        active = [one for one in self.running if not (one.is_paused or one.is_prefilling)]
        ready = {one.request.id: one for one in active if one.request is not None}
        if not ready:
            return
        limit = self.draft_limit.apply([*ready.values()])
        start = perf_counter()
        try:
            rounds = self.decoder.loop.step(
                [one.request for one in ready.values() if one.request is not None]
            )
        except Exception as error:  # nothing of the step is certain: none of its sequences can continue
            LOG.exception("a step failed")
            for sequence in ready.values():
                failure = generation_failed(error, is_users=False)
                self._end(sequence, Event(sequence.index, error=failure))
            return
        self.step_seconds = perf_counter() - start
        self.steps += 1
        self.draft_limit.add(limit, self.step_seconds)
        for round in rounds:
            self._add_round(ready[round.request], round)

    def _add_round(self, sequence: Generation, round: Round) -> None:
        with self._guard(sequence):
            before = sequence.times.last
            event = sequence.add(round)
            for observer in self.observers:
                observer.add_round(sequence, round, sequence.times.last - before if before else 0.0)
            if round.finish_reason == ERROR:
                event = Event(sequence.index, error=generation_failed(round.error))
            if event.is_last:
                self._end(sequence, event)
            elif event.pieces or event.logprobs:
                sequence.emit(event)

    @contextmanager
    def _guard(self, sequence: Generation) -> Iterator[None]:
        """End one sequence and no other for what raises within."""
        try:
            yield
        except Exception as error:
            self._end(sequence, Event(sequence.index, error=generation_failed(error)))

    def _end(self, sequence: Generation, event: Event) -> None:
        """Take a sequence out: its row is free at once."""
        if sequence.is_over:
            return
        sequence.is_over, sequence.times.ended = True, monotonic()
        try:
            if sequence.is_scoring and sequence.spec.prompt_scores is not None:
                sequence.spec.prompt_scores.stop()
            if sequence.request is not None:
                self.decoder.loop.close(sequence.request)
        except Exception:  # its client must hear of the end all the same
            LOG.exception("a text could not be closed")
        with self._bell:
            self._rows_due = True
            (self.running if sequence in self.running else self.waiting).remove(sequence)
        if sequence.times.joined:
            seconds = sequence.times.ended - sequence.times.joined
            self.answer_seconds += 0.1 * (seconds - self.answer_seconds)
        self._unsaved = True
        for observer in self.observers:
            observer.add_end(sequence, event)
        sequence.emit(event)

    def _save(self, *, now: bool = False) -> None:
        """Save what was learnt, now and then, and again after an error, which is a warning."""
        if (saver := self._saver) is None or not self._is_saving():
            self._unsaved = False
            return
        with self.decoder.loop.lock:
            self.decoder.loop.catch_up()
            if now:
                saver.end()
                return
            saver.finish()
            if monotonic() - self._saved >= SAVE_SECONDS and self._is_saving() and saver.start():
                self._unsaved, self._saved = False, monotonic()

    def _is_saving(self) -> bool:
        """Return whether something is to be saved, or being saved."""
        return self._unsaved or (self._saver is not None and (self._saver.is_busy or self._saver.failed))

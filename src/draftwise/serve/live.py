"""The live page and its data: the state of the server in numbers, for a few watchers and for machines."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, repeat
from logging import getLogger
from math import isfinite
from time import monotonic, time
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response

from ..core.roles import Valuer, Values
from ..core.round import Round
from ..errors import one_line
from .engine import Engine
from .errors import APIError
from .generations import Event, Generation
from .metrics import LABELS, Metrics
from .middleware import JsonResponse
from .service import Service, Stream

LOG = getLogger(__name__)
WINDOW = 5.0  # seconds over which speeds are taken, if there is a reading so old
MIN_GAP = 0.2  # seconds between two readings
MAX_ARMS = 256  # the most played ones
MAX_ROUNDS = 4096  # of a log; beyond, the oldest are lost
MEMORY = 0.98  # with which a plain step fades at each one of the same batch
COUNTERS = {
    "tokens": "vllm:generation_tokens_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "ended": "vllm:request_success_total",
    "drafts": "draftwise:spec_decode_num_drafts_total",
    "drafted": "draftwise:spec_decode_num_draft_tokens_total",
    "accepted": "draftwise:spec_decode_num_accepted_tokens_total",
    "rounds": "draftwise:spec_decode_num_rounds_total",
    "phases": "draftwise:phase_seconds_total",
    "faults": "draftwise:spec_decode_num_faults",
}
Json = dict[str, Any]
Counts = dict[str, dict[str, float]]


@dataclass(slots=True)
class Step:
    """One step so far: its sequences, their tokens and seconds, and whether it was plain decoding alone."""

    number: int = -1
    sequences: int = 0
    tokens: int = 0
    seconds: float = 0.0
    is_plain: bool = True


class RoundLog:
    """Keeps the last rounds in numbers, and the speed of steps without any draft, while someone looks.

    A row of a round: request, drafter, tokens drafted, accepted ones, the target's own, 1 if the text is
    over. The engine's thread writes, and any other may read.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rows: deque[tuple[int, list[Any]]] = deque(maxlen=MAX_ROUNDS)  # with their numbers
        self.added = 0
        self.step = Step()
        self.plain: dict[int, tuple[float, float]] = {}  # by sequences of the step: tokens, seconds

    def add_round(self, sequence: Generation, round: Round, gap: float) -> None:
        accepted, own = round.sources, len(round.tokens) - round.sources
        self._add([round.request, round.arm.drafter, round.drafted, accepted, own, int(round.done)])
        step = self.step
        if step.number != self.engine.steps:
            if step.sequences and step.is_plain:
                tokens, seconds = self.plain.get(step.sequences, (0.0, 0.0))
                total = (MEMORY * tokens + step.tokens, MEMORY * seconds + step.seconds)
                self.plain[step.sequences] = total
            step = self.step = Step(self.engine.steps)
        step.sequences += 1
        step.tokens += len(round.tokens)
        step.seconds += round.seconds.total
        # The first round may read the prompt.
        step.is_plain = step.is_plain and not round.drafted and sequence.stats.rounds > 1

    def add_end(self, sequence: Generation, event: Event) -> None:
        if sequence.request is not None:
            self._add([sequence.request.id, "", 0, 0, 0, 1])

    def _add(self, row: list[Any]) -> None:
        self.rows.append((self.added, row))
        self.added += 1

    def rows_since(self, number: int) -> tuple[list[list[Any]], int, int]:
        """Return the rows from this number on, how many of them are lost, and the number of the next one."""
        rows = [row for row in list(self.rows) if row[0] >= number]
        if not rows:
            return [], 0, number
        return [row for _, row in rows], rows[0][0] - number, rows[-1][0] + 1

    def plain_rate(self, sequences: int) -> float | None:
        """Return the tokens per second of plain decoding with about so many sequences; None if unknown."""
        plain = dict(self.plain)
        if not plain:
            return None
        tokens, seconds = plain[min(plain, key=lambda n: abs(n - sequences))]
        return tokens / seconds if seconds > 0.0 else None


class Reading(NamedTuple):
    at: float
    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    steps: int = 0


class Snapshots:
    """Makes the state of one server; it counts nothing itself but reads the metrics and asks the policy.

    Any thread may call, one at a time. It waits for the end of the present step.
    """

    def __init__(self, engine: Engine, metrics: Metrics, about: Json) -> None:
        self.engine, self.metrics, self.about, self.start_time = engine, metrics, about, monotonic()
        self.readings: deque[Reading] = deque([Reading(self.start_time)], maxlen=64)
        self.has_warned = False

    def take(self, log: RoundLog | None = None) -> Json:
        """Return the state now; a `log` gives the speed of plain decoding if the policy does not know it."""
        counts, engine, limits = self._counts(), self.engine, self.engine.limits
        seconds, rounds = (sum(counts.get(name, {}).values()) for name in ("phases", "rounds"))
        now = Reading(monotonic(), _total(counts, "tokens"), seconds, rounds, engine.steps)
        old = self._exchange(now)
        elapsed, written = now.at - old.at, now.tokens - old.tokens
        together = _rate(now.rounds - old.rounds, now.steps - old.steps)
        batch = max(1, round(together or len(engine.running)))
        values = self._values(batch)
        plain, source = (batch / values.plain, "learnt") if values.plain else (None, None)
        if not values.plain and log is not None and (plain := log.plain_rate(batch)):
            source = "measured"
        return self.about | {
            "time": round(time(), 3),
            "uptime_seconds": round(now.at - self.start_time, 1),
            "requests": {
                "running": len(engine.running),
                "waiting": len(engine.waiting),
                "batch": limits.batch,
                "queue": limits.queue,
                "ended": counts.get("ended", {}),
            },
            "tokens": now.tokens,
            "prompt_tokens": _total(counts, "prompt_tokens"),
            "speed": {
                "over_seconds": round(elapsed, 2),
                "tokens_per_second": _rate(written, elapsed),
                "decoding_tokens_per_second": _rate(written, now.seconds - old.seconds),
                "together": together,
                "plain_tokens_per_second": _short(plain),
                "plain_from": source,
            },
            "drafters": self._drafters(counts),
            "seconds_by_phase": {k: round(v, 6) for k, v in counts.get("phases", {}).items()},
            "arms": self._arms(counts, values),
            "unit": values.unit or None,
            "price": {kind: _short(rate) for kind, rate in values.price.items()},
            "matches": {name: _matches(rows) for name, rows in values.matches.items()},
        }

    def _counts(self) -> Counts:
        """Return the counters by their own label; those without one under an empty name."""
        names, counts = {name: key for key, name in COUNTERS.items()}, dict[str, dict[str, float]]()
        for family in self.metrics.registry.restricted_registry(list(names)).collect():
            for sample in family.samples:
                label = next((value for name, value in sample.labels.items() if name not in LABELS), "")
                counts.setdefault(names[sample.name], {})[label] = sample.value
        return counts

    def _exchange(self, now: Reading) -> Reading:
        """Keep a reading; return the newest one that is `WINDOW` seconds old, or the first."""
        while len(self.readings) > 1 and now.at - self.readings[1].at >= WINDOW:
            self.readings.popleft()
        if now.at - self.readings[-1].at >= MIN_GAP:
            self.readings.append(now)
        return self.readings[0]

    def _values(self, batch: int) -> Values:
        """Return the policy's estimates for its arms; empty if it has none."""
        loop = self.engine.decoder.loop
        try:
            if isinstance(loop.policy, Valuer):
                with loop.lock:
                    return loop.policy.values(batch)
        except Exception as error:  # a policy of anyone: its estimates are for display
            if not self.has_warned:
                LOG.warning("the policy cannot say what its arms are worth (%s)", one_line(error))
            self.has_warned = True
        return Values("", ())

    def _drafters(self, counts: Counts) -> dict[str, Json]:
        """Return the counts of each drafter, also of those that never drafted."""
        keys = ("drafts", "drafted", "accepted", "faults")
        return {
            name: {key: int(counts.get(key, {}).get(name, 0)) for key in keys}
            | {"recent": self.metrics.recent.counts(name)}
            for name in self.engine.decoder.loop.pool.drafters
            if name != "none"
        }

    def _arms(self, counts: Counts, values: Values) -> list[Json]:
        """Return every arm with the rounds that it was played, its value, and the seconds that it adds."""
        rounds, arms = counts.get("rounds", {}), self.engine.decoder.loop.policy.arms
        estimates, seconds = (chain(column, repeat(None)) for column in (values.values, values.seconds))
        rows: list[Json] = [
            {
                "arm": arm.name,
                "drafter": arm.drafter if arm.length else None,
                "length": arm.length,
                "rounds": int(rounds.get(arm.name, 0)),
                "value": _short(value),
                "seconds": _short(added),
            }
            for arm, value, added in zip(arms, estimates, seconds, strict=False)
        ]
        return rows if len(rows) <= MAX_ARMS else sorted(rows, key=lambda row: -row["rounds"])[:MAX_ARMS]


def _matches(rows: Mapping[str, tuple[float, float]]) -> Json:
    """Return the acceptance of a drafter by the length of the match."""
    return {key: {"tested": _short(tested), "accepted": _short(good)} for key, (tested, good) in rows.items()}


def _total(counts: Counts, name: str) -> int:
    """Return a counter without a label of its own."""
    return int(counts.get(name, {}).get("", 0))


def _short(value: float | None) -> float | None:
    """Return a number in few digits that JSON can hold."""
    return None if value is None or not isfinite(value) else float(f"{value:.5g}")


def _rate(amount: float, over: float) -> float | None:
    return _short(amount / over) if over > 0.0 else None


# -- who watches ------------------------------------------------------------------------------------------


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
        """Add a watcher, who must `leave`; an `APIError` says why none may come."""
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

    async def file(request: Request) -> Response:
        kind, content = page_files()[request.scope["path"]]
        return Response(content, media_type=kind, headers=HEADERS)

    for address in page_files():
        app.add_api_route(address, file, include_in_schema=False)


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
    """Raise an `APIError` for a page of another site, which could hold a stream open: browsers name it."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
    if not is_own and not {origin, "*"} & set(origins):
        message = f"a page of {origin or 'another site'} may not watch: name its origin as --allow-origin"
        raise APIError(message, 403, code="foreign_origin")

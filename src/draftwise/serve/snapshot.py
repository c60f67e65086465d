"""The state of the server in numbers, for the live page and for machines."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from logging import getLogger
from math import isfinite
from time import monotonic, time
from typing import Any

from ..core.roles import Valuer, Values
from ..core.round import Round
from ..errors import one_line
from .engine import Engine
from .metrics import LABELS, Metrics
from .strips import Strips
from .texts import Event, Text

LOG = getLogger(__name__)
WINDOW = 5.0  # seconds over which speeds are taken, if there is a reading so old
LATELY, SLICE = 300, 10  # seconds over which acceptance is counted, and by how many at once
OFTEN = 0.2  # seconds between two readings at least
MOST_ARMS = 256  # the most played ones
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


class Recent:
    """Tokens that each drafter drafted lately, and those of them that were accepted; watches the engine."""

    def __init__(self) -> None:
        self.slices: deque[tuple[int, Counter[tuple[str, str]]]] = deque(maxlen=LATELY // SLICE)

    def round(self, text: Text, round: Round, gap: float) -> None:
        """Count a round with a draft."""
        if not round.drafted:
            return
        now = int(monotonic() // SLICE)
        if not self.slices or self.slices[-1][0] != now:
            self.slices.append((now, Counter()))
        counts, name = self.slices[-1][1], round.arm.drafter
        counts[name, "drafted"] += round.drafted
        counts[name, "accepted"] += round.accepted

    def end(self, text: Text, event: Event) -> None:
        """A text has ended."""

    def of(self, name: str) -> dict[str, int]:
        """The counts of one drafter."""
        oldest = monotonic() // SLICE - LATELY // SLICE
        new = [counts for at, counts in list(self.slices) if at > oldest]
        return {key: sum(counts[name, key] for counts in new) for key in ("drafted", "accepted")}


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals at one time: what was written in the seconds of all rounds, and what plain decoding would have
    written in as many of them as its speed was known in."""

    at: float
    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    steps: int = 0
    plain_tokens: float = 0.0
    plain_seconds: float = 0.0


class Snapshots:
    """Makes the state of one server; it counts nothing itself but reads the metrics and asks the policy.

    Any thread may call, one at a time. It waits for the end of the present step.
    """

    def __init__(self, engine: Engine, metrics: Metrics, about: Json) -> None:
        self.engine, self.metrics, self.about, self.began = engine, metrics, about, monotonic()
        self.names = list(COUNTERS.values())
        self.readings: deque[Reading] = deque([Reading(self.began)], maxlen=64)
        self.warned, self.recent = False, Recent()
        engine.watchers.append(self.recent)

    def take(self, strips: Strips | None = None) -> Json:
        """The state now; with `strips`, plain decoding is measured where the policy does not know it."""
        counts = self._counts()
        now, old = self._reading(counts), self._oldest()
        together = _rate(now.rounds - old.rounds, now.steps - old.steps)
        batch = max(1, round(together or len(self.engine.running)))
        values = self._values(batch)
        plain, source = _plain(values, strips, batch)
        now = self._keep(now, plain)
        speed = _speed(old, now) | {"together": together}
        average = _rate(now.plain_tokens - old.plain_tokens, now.plain_seconds - old.plain_seconds)
        speed |= {"plain_tokens_per_second": average or _short(plain), "plain_from": source}
        engine, limits = self.engine, self.engine.limits
        return self.about | {
            "time": round(time(), 3),
            "uptime_seconds": round(monotonic() - self.began, 1),
            "requests": {
                "running": len(engine.running),
                "waiting": len(engine.waiting),
                "batch": limits.batch,
                "queue": limits.queue,
                "ended": counts.get("ended", {}),
            },
            "tokens": _whole(counts, "tokens"),
            "prompt_tokens": _whole(counts, "prompt_tokens"),
            "speed": speed,
            "drafters": self._drafters(counts),
            "seconds_by_phase": {k: round(v, 6) for k, v in counts.get("phases", {}).items()},
            "arms": self._arms(counts, values),
            "unit": values.unit if values else None,
            "price": {place: _short(rate) for place, rate in values.price.items()} if values else {},
            "matches": _matches(values) if values else {},
        }

    def _counts(self) -> Counts:
        """The counters by their own label; those without one under an empty name."""
        own, found = {name: key for key, name in COUNTERS.items()}, dict[str, dict[str, float]]()
        for family in self.metrics.registry.restricted_registry(self.names).collect():
            for sample in family.samples:
                label = next((value for name, value in sample.labels.items() if name not in LABELS), "")
                found.setdefault(own[sample.name], {})[label] = sample.value
        return found

    def _reading(self, counts: Counts) -> Reading:
        seconds, rounds = (sum(counts.get(name, {}).values()) for name in ("phases", "rounds"))
        return Reading(monotonic(), _whole(counts, "tokens"), seconds, rounds, self.engine.steps)

    def _oldest(self) -> Reading:
        """The newest reading that is `WINDOW` seconds old, or the first."""
        while len(self.readings) > 1 and monotonic() - self.readings[1].at >= WINDOW:
            self.readings.popleft()
        return self.readings[0]

    def _keep(self, now: Reading, plain: float | None) -> Reading:
        """Note a reading, with what plain decoding would have written since the last."""
        last = self.readings[-1]
        known = now.seconds - last.seconds if plain else 0.0
        tokens = last.plain_tokens + (plain or 0.0) * known
        now = replace(now, plain_tokens=tokens, plain_seconds=last.plain_seconds + known)
        if now.at - last.at >= OFTEN:
            self.readings.append(now)
        return now

    def _values(self, batch: int) -> Values | None:
        """What the policy holds of its arms; None if it does not say."""
        loop = self.engine.decoder.loop
        if not isinstance(loop.policy, Valuer):
            return None
        try:
            with loop.lock:
                return loop.policy.values(batch)
        except Exception as error:  # a policy of anyone: what it tells is for display
            if not self.warned:
                LOG.warning("the policy cannot say what its arms are worth (%s)", one_line(error))
            self.warned = True
            return None

    def _drafters(self, counts: Counts) -> dict[str, Json]:
        """Counts of each drafter of the team, also of those that never drafted."""
        names = [name for name in self.engine.decoder.loop.pool.drafters if name != "none"]
        keys = ("drafts", "drafted", "accepted", "faults")
        found: dict[str, Json] = {}
        for name in names:
            found[name] = {key: int(counts.get(key, {}).get(name, 0)) for key in keys}
            found[name]["recent"] = self.recent.of(name)
        return found

    def _arms(self, counts: Counts, values: Values | None) -> list[Json]:
        """Every arm with the rounds that it was played, its value, and the seconds that it adds."""
        played, arms = counts.get("rounds", {}), self.engine.decoder.loop.policy.arms
        worth = values.values if values else ()
        seconds = values.seconds if values else ()
        found: list[Json] = []
        for i, arm in enumerate(arms):
            found.append(
                {
                    "arm": arm.name,
                    "drafter": arm.drafter if arm.length else None,
                    "length": arm.length,
                    "rounds": int(played.get(arm.name, 0)),
                    "value": _short(worth[i]) if i < len(worth) else None,
                    "seconds": _short(seconds[i]) if i < len(seconds) else None,
                }
            )
        if len(found) <= MOST_ARMS:
            return found
        return sorted(found, key=lambda one: -one["rounds"])[:MOST_ARMS]


def _matches(values: Values) -> Json:
    """Acceptance by drafter and length of the match."""
    return {
        name: {
            label: {"tested": _short(tested), "accepted": _short(accepted)}
            for label, (tested, accepted) in rows.items()
        }
        for name, rows in values.matches.items()
    }


def _whole(counts: Counts, name: str) -> int:
    """A counter without a label of its own."""
    return int(counts.get(name, {}).get("", 0))


def _short(value: float | None) -> float | None:
    """A number in few digits that JSON can hold."""
    if value is None or not isfinite(value):
        return None
    return float(f"{value:.5g}")


def _speed(old: Reading, now: Reading) -> Json:
    """Tokens per second by the wall clock, and by the seconds of rounds."""
    seconds, tokens = now.at - old.at, now.tokens - old.tokens
    return {
        "over_seconds": round(seconds, 2),
        "tokens_per_second": _rate(tokens, seconds),
        "decoding_tokens_per_second": _rate(tokens, now.seconds - old.seconds),
    }


def _rate(amount: float, over: float) -> float | None:
    return _short(amount / over) if over > 0.0 else None


def _plain(values: Values | None, strips: Strips | None, batch: int) -> tuple[float | None, str | None]:
    """Tokens per second of plain decoding with so many texts, and how that is known."""
    if values is not None and values.plain:
        return batch / values.plain, "learnt"
    rate = strips.rate(batch) if strips is not None else None
    return (rate, "measured") if rate else (None, None)

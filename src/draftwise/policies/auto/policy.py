"""`auto`: who drafts, how far and when to stop, by what it is worth in seconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from math import isfinite
from operator import attrgetter
from random import Random
from typing import TypeAlias

from ...core.arms import NEVER, Arm, Context, Decision, Stop
from ...core.outcomes import Feedback, Outcome
from ..learners.learner import LEARNED
from .costs import CLASSES, DraftCost, Load, PassCost, nearest, size_class
from .guard import Guard
from .skill import Calibration, Skill

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
# A lookup's context is the first of these that holds its match.
MATCHES = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)
CONTEXTS = len(MATCHES) + 1
GAIN = attrgetter("gain")
TRIALS = (1, 1, 4)  # tokens of a drafter's first drafts: one untimed, then two lengths for start and slope
TRUSTED = 40.0  # tested tokens from which a drafter's own confidence may stop it


Price: TypeAlias = tuple[float, float, Sequence[float]]
"""Seconds of a draft: its start, each of its tokens, and what the pass takes more with 0, 1, ... of them."""


@dataclass(slots=True)
class Place:
    """Where one request stands: each drafter's context at the last choice, how far it has read the text, and
    how many tokens were written."""

    contexts: list[int]
    read: list[int]
    written: int = 0
    best: int = 0


@dataclass(slots=True)
class Worth:
    """What one drafter is worth now: `gain` tokens more than none, net of what its seconds would write. A
    `trial` comes whatever it is worth, to learn what it costs."""

    drafter: int
    length: int
    tokens: float
    seconds: float
    gain: float
    trial: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a round went as it did: the rate that seconds were priced at, what was chosen, what each drafter
    was worth, and whether the guard had called speculation off."""

    position: int
    rate: float
    arm: Arm
    worths: tuple[Worth, ...]
    paused: bool


@dataclass(slots=True)
class AutoPolicy:
    """Plays, in every round, the drafter and length of the most tokens net of their price; or no draft.

    A draft of n tokens is worth the sum of the chances that its first 1, 2, ... n tokens are accepted, less
    `price` times the seconds that it adds: drafting, reading up, and a longer target pass. The price is the
    tokens per second of late, and never less than plain decoding's, which makes this the rule that maximises
    total tokens over total seconds (Dinkelbach 1967; the ratio objective of renewal rewards;
    docs/explanation/auto.md).
    Chances are known per drafter and context (`Skill`): for a lookup, the length of its match; for a model,
    the best match that any lookup has. Every committed text teaches them for all drafters (`Watch`). A model
    whose confidence has been calibrated stops as soon as the chance that one more token is accepted falls
    below that token's price. `looks_up` says which drafters are known by their drafts; `Watch` corrects it
    once it meets them. `reasons`, if it is a list, gets one entry for every choice.
    """

    arms: tuple[Arm, ...]
    drafters: tuple[str, ...]
    looks_up: tuple[bool, ...]
    _: KW_ONLY
    reads_hints: bool = True
    memory: float = 0.85
    skills: list[Skill] = field(init=False, metadata=LEARNED)
    calibrations: list[Calibration] = field(init=False, metadata=LEARNED)
    drafting: list[DraftCost] = field(init=False, metadata=LEARNED)
    passes: list[PassCost] = field(init=False, metadata=LEARNED)
    tokens: float = field(default=0.0, metadata=LEARNED)
    seconds: float = field(default=0.0, metadata=LEARNED)
    answer: float = field(default=0.0, metadata=LEARNED)
    guard: Guard = field(default_factory=Guard)
    load: Load = field(default_factory=Load)
    reasons: list[Reason] | None = None
    places: dict[int, Place] = field(default_factory=dict)
    index: Mapping[tuple[int, int], int] = field(init=False)
    lengths: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.drafters)
        self.skills = [Skill(CONTEXTS, LENGTHS[-1]) for _ in range(n)]
        self.calibrations = [Calibration() for _ in range(n)]
        self.drafting = [DraftCost() for _ in range(n)]
        self.passes = [PassCost() for _ in CLASSES]
        self.lengths = tuple(sorted({arm.length for arm in self.arms if arm.length})) or LENGTHS
        number = {name: i for i, name in enumerate(self.drafters)}
        self.index = {(number.get(arm.drafter, -1), arm.length): i for i, arm in enumerate(self.arms)}

    @property
    def rate(self) -> float:
        """Tokens per second of late, all requests together, had the machine its usual load; 0 at first."""
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0

    def price(self, batch: int) -> float:
        """Tokens that a second is worth: as they come of late, and never fewer than plain decoding writes."""
        rate, alone = self.rate, nearest(self.passes, size_class(batch))(batch)
        return max(rate, batch / alone) if alone else rate

    # -- choosing ------------------------------------------------------------------------------------

    def choose(self, context: Context, rng: Random) -> Decision:
        """The arm of the highest worth at this round's hints."""
        place = self._place(context)
        worths, batch = self.worths(context, place), context.batch_size
        best = max(worths, key=GAIN, default=None)
        pays = best is not None and best.gain > 0.0
        stands = not pays or self.guard.stands(self.load.factor, batch)
        if best is None or not (pays and stands):
            decision = Decision(self.index[-1, 0])
        else:
            stop = self._stop(best.drafter, batch)
            decision = Decision(self.index[best.drafter, best.length], 1.0, (stop,))
        if self.reasons is not None:
            arm, price = self.arms[decision.arm], self.price(batch)
            self.reasons.append(Reason(context.position, price, arm, tuple(worths), not stands))
        return decision

    def worths(self, context: Context, place: Place) -> list[Worth]:
        """What every drafter in use is worth in this round, at its best length."""
        batch, request, unavailable = context.batch_size, context.request, context.unavailable
        passes, rate = nearest(self.passes, size_class(batch)), self.price(batch)
        extra, room = passes.extra or passes.table(batch, LENGTHS[-1]), passes.room(batch)
        found = []
        for i, name in enumerate(self.drafters):
            where = place.contexts[i]
            unknown = not where if self.looks_up[i] else not self.skills[i].seen
            if unknown or name in unavailable:
                continue  # no match, or a model of which nothing is known yet: `Watch` will see to it
            curve = self.skills[i].survival(request, where)
            start, each = self.drafting[i].price(batch)
            width = self.drafting[i].width
            if self.drafting[i].tried < len(TRIALS):  # the best at no price is tried, to learn its price
                most = min(TRIALS[self.drafting[i].tried], room)
                length = next((n for n in self.lengths if n >= most), self.lengths[-1])
                found.append(Worth(i, length, sum(curve[:length]), 0.0, sum(curve), trial=True))
                continue
            if not self.looks_up[i]:
                unread = max(0, context.length - place.read[i])
                start += self.drafting[i].reading.each * unread / self._rounds_left(context)
            more = extra if width <= 1.0 else passes.table(batch, LENGTHS[-1], width)
            price = self._price(start, each, more)
            found.append(self._best(i, curve[: max(1, int(room / width))], price, rate))
        return found

    def _price(self, start: float, each: float, extra: Sequence[float]) -> Price:
        """What a draft of this drafter costs: the measured seconds."""
        return start, each, extra

    def _best(self, i: int, survival: Sequence[float], price: Price, rate: float) -> Worth:
        """The best length of one drafter, by its chances and its price."""
        start, each, extra = price
        sums, most = [0.0, *accumulate(survival)], len(survival)
        best, highest = 0, -1.0
        for length in self.lengths:
            tokens = sums[length] if length < most else sums[-1]
            gain = tokens - rate * (start + each * length + extra[length])
            if gain > highest:
                best, highest = length, gain
            if length >= most:
                break
        return Worth(i, best, sums[min(best, most)], start + each * best + extra[best], highest)

    def may_pay(self, i: int, batch: int) -> bool:
        """Whether one token of this drafter may be worth its price, for all that is known."""
        start, each = self.drafting[i].price(batch)
        return not self.skills[i].hope < self.price(batch) * (start + each)

    def _stop(self, i: int, batch: int) -> Stop:
        """Draft on while the chance that one more token is accepted as well is above its price."""
        if self.looks_up[i]:
            return NEVER
        calibration = self.calibrations[i]
        if calibration.seen < TRUSTED:
            return Stop("gain", 0.0, calibration)  # never, but its confidence is read and learnt from
        extra = nearest(self.passes, size_class(batch)).extra
        _, each = self.drafting[i].price(batch)
        width = self.drafting[i].width
        price = self.price(batch) * (each + width * (extra[-1] if extra else 0.0) / LENGTHS[-1])
        return Stop("gain", min(price / self.skills[i].level, 0.9), calibration)

    def _place(self, context: Context) -> Place:
        place = self.places.get(context.request)
        if place is None:
            place = self.places[context.request] = Place([0] * len(self.drafters), [0] * len(self.drafters))
        hints = context.hints
        contexts = [
            _match(hints.get(name, 0.0)) if up else 0
            for name, up in zip(self.drafters, self.looks_up, strict=True)
        ]
        place.best = best = max(contexts, default=0)
        for i, up in enumerate(self.looks_up):
            if not up:
                contexts[i] = best
        place.contexts = contexts
        return place

    def _rounds_left(self, context: Context) -> float:
        """How many rounds reading up is paid off over: what is left of an answer, by those before."""
        left = max(self.answer - context.position, 0.5 * context.position, 8.0)
        return max(1.0, left / 2.0)

    # -- learning ------------------------------------------------------------------------------------

    def learn(self, feedback: Feedback) -> None:
        """What the played arm cost, and what the text says of every draft that was held against it."""
        for window in feedback.windows:
            self.skills[window.drafter].learn(feedback.request, window.context, window.accepts)
        for outcome in feedback.outcomes:
            self._time(outcome)
            self._calibrate(outcome)

    def _time(self, outcome: Outcome) -> None:
        spent = outcome.spent
        if spent is None or not isfinite(outcome.seconds):
            return
        n = spent.requests
        passes = self.passes[size_class(n)]
        self.load.add(spent.target, passes.usual(spent.pass_tokens), requests=n)
        seconds = outcome.seconds / self.load.factor
        passes.add(spent.pass_tokens, spent.target / self.load.factor, requests=n)
        keep = self.memory if n == 1 else self.memory ** (1.0 / n)
        self.tokens = keep * self.tokens + outcome.accepted + 1
        self.seconds = keep * self.seconds + seconds
        if spent.pass_tokens > n:
            self.guard.add(seconds, (outcome.accepted + 1) * passes(n) / n, n)

    def _calibrate(self, outcome: Outcome) -> None:
        arm = self.arms[outcome.arm]
        if outcome.signals and arm.length:
            calibration = self.calibrations[self.drafters.index(arm.drafter)]
            for k, signals in enumerate(outcome.signals[: outcome.accepted + 1]):
                calibration.learn(signals.chosen, float(k < outcome.accepted))

    def close(self, request: int) -> None:
        """A text has ended: its length is an example of how long answers are."""
        place = self.places.pop(request, None)
        for skill in self.skills:
            skill.close(request)
        if place is not None and place.written:
            self.answer += (0.1 if self.answer else 1.0) * (place.written - self.answer)


def _match(hint: float) -> int:
    """The context of a match: 0 for none."""
    return bisect_left(MATCHES, hint)

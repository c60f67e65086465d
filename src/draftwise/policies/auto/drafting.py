"""Cost of a drafter: seconds of its draft calls, and of reading text that it has not read."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, nan

from ...state.learned import LEARNED, adds, learned, mean_by, mean_over
from .passes import CLASSES, MEMORY, SETTLING, size_class

NOTHING = 0.1  # weight of the reading of no tokens in no time
TRIED = 3  # calls from which the cost of a drafter is known
FIRST, GROWTH, LONGEST = 256.0, 4.0, 8192.0  # rounds without a call, after which the cost is measured again


@dataclass(slots=True)
class Line:
    """Seconds as `start` + `each` * tokens, by least squares with fading weights; neither is negative.

    The fit has one additional reading of 0 tokens in 0 seconds: as long as all readings have the same number
    of tokens, seconds are taken to be proportional to tokens.
    """

    start: float = field(default=0.0, metadata=learned(mean_by("readings")))
    each: float = field(default=0.0, metadata=learned(mean_by("readings")))
    readings: float = field(default=0.0, metadata=learned(adds))
    sums: list[float] = field(default_factory=lambda: [0.0] * 5, metadata=learned(adds))

    def __call__(self, tokens: float, *, starts: float = 1.0) -> float:
        """Seconds for so many tokens."""
        return starts * self.start + self.each * tokens

    def add(self, tokens: float, seconds: float, *, starts: float = 1.0) -> None:
        """Learn one reading; `starts` is 0 if the seconds do not include the start.

        From the fifth reading on, seconds count as at least half and at most twice the expected value.
        """
        if self.readings >= 4.0:
            known = self(tokens, starts=starts)
            seconds = min(max(seconds, 0.5 * known), 2.0 * known)
        keep = 1.0 - 1.0 / MEMORY
        self.readings = keep * self.readings + 1.0
        w, n, s, nn, ns = (keep * x for x in self.sums)
        w, n, s = w + starts, n + starts * tokens, s + starts * seconds
        nn, ns = nn + tokens * tokens, ns + tokens * seconds
        self.sums = [w, n, s, nn, ns]
        area = (w + NOTHING) * nn - n * n
        self.start, self.each = (s * nn - n * ns) / area, ((w + NOTHING) * ns - n * s) / area
        if self.start < 0.0:
            self.start, self.each = 0.0, ns / nn
        elif self.each < 0.0:
            self.start, self.each = s / (w + NOTHING), 0.0


def is_behind(pending: int, longest: int, mates: int) -> bool:
    """Whether a call first reads so much that this takes a good part of its time."""
    return pending > 16 * mates + 4 * longest


def _calls(cost: DraftCost) -> float:
    """The readings behind what is known of a drafter."""
    return sum(line.readings for line in (*cost.calls, cost.reading))


@dataclass(slots=True)
class DraftCost:
    """Seconds of one drafter: of a call that drafts for one or more requests, and of reading text.

    A call takes as long as its longest draft. Its cost is shared by the requests that recent calls drafted
    for (`mates`), so that each pays what one more token costs if all of them draft it. `width` is the number
    of tokens in a draft per token of depth: 1 for a chain, more for a tree. The first call of all is not
    timed, because it prepares kernels and memory. Nor is the second or third that reads a long text first.

    A drafter that looks too expensive is not called, and no call would show that it is not. So its cost is
    forgotten, and it is tried like a new one, after `wait` rounds of single texts in which it could have
    drafted and was not called: 256, then four times as many each time that it is not called again, up to
    8,192.
    """

    calls: list[Line] = field(default_factory=list, metadata=LEARNED)
    mates: list[float] = field(default_factory=list, metadata=learned(mean_over(_calls)))
    reading: Line = field(default_factory=Line, metadata=LEARNED)
    width: float = field(default=1.0, metadata=learned(mean_over(_calls)))
    untimed: int = 0
    reads: bool = False
    idle: float = 0.0
    wait: float = FIRST

    def __post_init__(self) -> None:
        self.calls = self.calls or [Line() for _ in CLASSES]
        self.mates = self.mates or [1.0] * len(CLASSES)

    def drafted(self, longest: int, pending: int, seconds: float, *, mates: int = 1, batch: int = 1) -> None:
        """Learn one call for `mates` requests of a batch, which first read `pending` tokens of their texts.

        A call with many pending tokens updates the cost of reading, any other the cost of drafting.
        """
        if not isfinite(seconds):
            return
        at = size_class(batch)
        call = self.calls[at]
        behind, known = is_behind(pending, longest, mates), any(line.readings for line in self.calls)
        if not known and (not self.untimed or (behind and self.untimed < TRIED)):
            self.untimed += 1
            return
        if behind and call.readings:
            self.reading.add(pending, max(0.0, seconds - call(longest)), starts=0.0)
            return
        call.add(max(1, longest), max(0.0, seconds - self.reading.each * pending))
        self.mates[at] += (1.0 if call.readings <= 1.0 else SETTLING) * (mates - self.mates[at])

    def used(self, called: bool) -> None:
        """Count a round of a single text in which this drafter could draft, and was called or not."""
        if called:
            self.idle = 0.0
            if self.tried >= TRIED:
                self.wait = FIRST
            return
        self.idle += 1.0
        if self.idle >= self.wait:
            self.idle, self.wait = 0.0, min(GROWTH * self.wait, LONGEST)
            self.calls, self.untimed = [Line() for _ in CLASSES], 1

    @property
    def tried(self) -> int:
        """The number of calls, counted up to three; the first of them was not timed."""
        for call in self.calls:
            if call.readings >= 1.5:  # the usual case, which needs no maximum
                return TRIED
        timed = max(call.readings for call in self.calls)
        return round(timed) + (self.untimed > 0 or timed > 0.0)

    def shaped(self, tokens: int, length: int) -> None:
        """Learn from a draft of `tokens` tokens where `length` was asked for."""
        share = SETTLING if self.width > 1.0 else 1.0  # the first tree shows that the drafter makes trees
        self.width += share * (max(1.0, tokens / length) - self.width)

    def price(self, batch: int) -> tuple[float, float]:
        """Seconds of a draft for one request, as a start and per token of its length; NaN before any call."""
        at = self._nearest(batch)
        call, mates = self.calls[at], self.mates[at]
        return (call.start / mates, call.each * self.width / mates) if call.readings else (nan, nan)

    def call(self, batch: int) -> tuple[float, float]:
        """Seconds of a call: its start, and per token of its longest draft; NaN before any call."""
        call = self.calls[self._nearest(batch)]
        return (call.start, call.each * self.width) if call.readings else (nan, nan)

    def _nearest(self, batch: int) -> int:
        """This class of batches, or the nearest with any call."""
        at = size_class(batch)
        if not self.calls[at].readings:
            known = [k for k, call in enumerate(self.calls) if call.readings]
            at = min(known, key=lambda k: abs(k - at), default=at)
        return at

    def read(self, tokens: int, seconds: float, *, batch: int = 1) -> None:
        """Learn one pass over `tokens` tokens of the text.

        The first of all prepares kernels and memory as well. Where it made reading look too expensive, the
        drafter would not be called for a single text, and no pass would show that it is not: there it is not
        timed.
        """
        if tokens > 0 and isfinite(seconds):
            if batch > 1 or self.reads or self.reading.readings:
                self.reading.add(tokens, seconds)
            self.reads = True

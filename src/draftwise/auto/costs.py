"""What things cost, learnt while they run: seconds of a target pass, of a draft, of reading up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

from ..learners.learner import LEARNED

KNOTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24, 28, 33, 40, 48, 64, 96, 128, 192, 256, 384, 512)
CLASSES = (1, 2, 4, 8, 16, 32)  # a batch is of the first class that holds it
MEMORY = 64  # a knot's mean is over about as many passes
FRESH = 8  # passes between two fits


@dataclass(slots=True)
class PassCost:
    """Seconds of a target pass by the tokens it reads: a mean per knot, made monotone.

    A pass of more tokens never costs less, so means that fall are pooled (isotonic regression). A reading is
    taken for at most twice and at least half of what is known of its knot, so that a hiccup moves a mean
    little and lasting change moves it soon. Beyond the largest pass seen, the last slope goes on; with one
    knot alone more tokens are taken to be free, which they are until tried.
    """

    means: list[float] = field(default_factory=list, metadata=LEARNED)
    counts: list[float] = field(default_factory=list, metadata=LEARNED)
    since: int = 0
    fitted: list[tuple[int, float]] = field(default_factory=list)
    tables: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.means = self.means or [0.0] * len(KNOTS)
        self.counts = self.counts or [0.0] * len(KNOTS)

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return any(self.counts)

    def add(self, tokens: int, seconds: float) -> None:
        """One pass."""
        if not (isfinite(seconds) and seconds > 0.0):
            return
        at = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)
        mean, n = self.means[at], self.counts[at]
        if n >= 4.0:
            seconds = min(max(seconds, 0.5 * mean), 2.0 * mean)
        self.counts[at] = n = min(n + 1.0, MEMORY)
        self.means[at] = mean + (seconds - mean) / n
        self.since += 1
        if self.since >= FRESH or n == 1.0 or not self.fitted:
            self.fitted, self.since = self._fit(), 0
            self.tables.clear()

    def usual(self, tokens: int) -> float:
        """Seconds of a pass of about this size, or 0 where too few were seen."""
        at = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)
        return self.means[at] if self.counts[at] >= 4.0 else 0.0

    def __call__(self, tokens: float) -> float:
        """Seconds of a pass over so many tokens; 0 before any was seen."""
        points = self.fitted or self._fit()
        if not points:
            return 0.0
        if tokens <= points[0][0]:
            return points[0][1]
        for (x0, y0), (x1, y1) in pairwise(points):
            if tokens <= x1:
                return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
        last = points[-1]
        if len(points) == 1:
            return last[1]
        slope = (last[1] - points[0][1]) / (last[0] - points[0][0])
        return last[1] + slope * (tokens - last[0])

    def table(self, first: int, count: int) -> list[float]:
        """Seconds more than a pass of `first` tokens, for 0, 1, ... `count` more."""
        if first not in self.tables or len(self.tables[first]) <= count:
            base = self(first)
            self.tables[first] = [self(first + k) - base for k in range(count + 1)]
        return self.tables[first]

    def _fit(self) -> list[tuple[int, float]]:
        pools: list[tuple[float, float, int]] = []  # (mean, weight, knots)
        seen = [i for i, n in enumerate(self.counts) if n]
        for i in seen:
            mean, weight, size = self.means[i], self.counts[i], 1
            while pools and pools[-1][0] >= mean:
                before, other, more = pools.pop()
                mean = (mean * weight + before * other) / (weight + other)
                weight, size = weight + other, size + more
            pools.append((mean, weight, size))
        values = [mean for mean, _, size in pools for _ in range(size)]
        return [(KNOTS[i], value) for i, value in zip(seen, values, strict=True)]


@dataclass(slots=True)
class Load:
    """How busy the machine is: what passes take now over what they take by and large.

    Costs are learnt at different times: a busy spell that met only plain passes would make them look dear
    beside drafts that were timed in a quiet one. So every reading is divided by this first.
    """

    factor: float = 1.0

    def add(self, seconds: float, usual: float) -> None:
        """One pass, of a size whose usual seconds are known."""
        if usual > 0.0 and isfinite(seconds) and seconds > 0.0:
            self.factor += 0.15 * (min(max(seconds / usual, 0.2), 5.0) - self.factor)


@dataclass(slots=True)
class Line:
    """Seconds as a start and so much for each token, by fading least squares; neither is ever negative.

    The start leans on none with the weight of one reading: as long as all readings are of one size, seconds
    are taken to go with the tokens.
    """

    start: float = field(default=0.0, metadata=LEARNED)
    each: float = field(default=0.0, metadata=LEARNED)
    readings: float = field(default=0.0, metadata=LEARNED)
    sums: list[float] = field(default_factory=lambda: [0.0] * 5, metadata=LEARNED)

    def __call__(self, tokens: float, *, starts: float = 1.0) -> float:
        """Seconds for so many tokens."""
        return starts * self.start + self.each * tokens

    def add(self, tokens: float, seconds: float, *, starts: float = 1.0) -> None:
        """One reading, of which a start was a part or was not."""
        if self.readings >= 4.0:
            known = self(tokens, starts=starts)
            seconds = min(max(seconds, 0.5 * known), 2.0 * known)
        keep = 1.0 - 1.0 / MEMORY
        self.readings = keep * self.readings + 1.0
        w, n, s, nn, ns = (keep * x for x in self.sums)
        w, n, s = w + starts, n + starts * tokens, s + starts * seconds
        nn, ns = nn + tokens * tokens, ns + tokens * seconds
        self.sums = [w, n, s, nn, ns]
        area = (w + 1.0) * nn - n * n
        self.start, self.each = (s * nn - n * ns) / area, ((w + 1.0) * ns - n * s) / area
        if self.start < 0.0:
            self.start, self.each = 0.0, ns / nn
        elif self.each < 0.0:
            self.start, self.each = s / (w + 1.0), 0.0


@dataclass(slots=True)
class DraftCost:
    """Seconds of one drafter: of a draft, and of a pass in which it reads text."""

    draft: Line = field(default_factory=Line, metadata=LEARNED)
    reading: Line = field(default_factory=Line, metadata=LEARNED)

    def drafted(self, tokens: int, pending: int, seconds: float) -> None:
        """One draft of `tokens`, before which `pending` tokens of the text were read.

        Many of them teach the price of reading, few that of drafting.
        """
        if not isfinite(seconds):
            return
        if pending > 16 + 4 * tokens and self.draft.readings:
            self.reading.add(pending, max(0.0, seconds - self.draft(tokens)), starts=0.0)
        else:
            self.draft.add(max(1, tokens), max(0.0, seconds - self.reading.each * pending))

    def read(self, tokens: int, seconds: float) -> None:
        """One pass over `tokens` of the text."""
        if tokens > 0 and isfinite(seconds):
            self.reading.add(tokens, seconds)


def size_class(batch: int) -> int:
    """The index of a batch's class in `CLASSES`."""
    return min(bisect_left(CLASSES, batch), len(CLASSES) - 1)


def nearest(costs: Sequence[PassCost], at: int) -> PassCost:
    """The costs of this class, or of the nearest one that is known."""
    return min((c for c in costs if c.known), key=lambda c: abs(costs.index(c) - at), default=costs[at])

"""What things cost, learnt while they run: seconds of a target pass, of a draft, of reading up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, nan

from ..learners.learner import LEARNED

KNOTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24, 28, 33, 40, 48, 64, 96, 128, 192, 256, 384, 512)
CLASSES = (1, 2, 4, 8, 16, 32)  # a batch is of the first class that holds it
MEMORY = 64  # passes that a mean is over, of whatever size: what was long not met counts for little
FRESH = 8  # passes between two fits
LONGEST = 16  # the longest draft whose price is kept ready
BUSIEST = 2.0  # times what is usual
IDLE = 512  # plain passes after which a price is made anew
COLD = 1.5  # times what is expected: a first pass of its size that is left out
SETTLING = 0.1  # of a new price, with each pass of a batch


@dataclass(slots=True)
class PassCost:
    """Seconds of a target pass by the tokens it reads: a mean for each range of sizes, made monotone.

    A pass of more tokens never costs less, so means that fall are pooled (isotonic regression). A reading is
    taken for at most twice and at least half of what is known of its range, so that a hiccup moves a mean
    little and lasting change moves it soon. The first of a range is left out if it is dearer than the others
    let expect: kernels are prepared for a new shape. Beyond the passes seen, slopes go on; with one size
    alone more tokens are taken to be free, which is why drafts grow step by step (`room`).

    `extra` is what a request adds to a pass with 0, 1, ... drafted tokens. In a batch that depends on what
    the others draft, so it is a mean over what they drafted of late: the price that, if all keep to it, fills
    a pass just as far as it pays.
    """

    means: list[float] = field(default_factory=list, metadata=LEARNED)
    counts: list[float] = field(default_factory=list, metadata=LEARNED)
    middles: list[float] = field(default_factory=list, metadata=LEARNED)
    extra: list[float] = field(default_factory=list, metadata=LEARNED)
    met: list[float] = field(default_factory=list, metadata=LEARNED)
    passes: float = field(default=0.0, metadata=LEARNED)
    since: float = 0.0
    part: float = 1.0
    idle: float = 0.0
    cold: list[bool] = field(default_factory=lambda: [False] * len(KNOTS))  # had its first
    sizes: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.means = self.means or [0.0] * len(KNOTS)
        self.counts = self.counts or [0.0] * len(KNOTS)
        self.middles = self.middles or [0.0] * len(KNOTS)
        self.met = self.met or [0.0] * len(KNOTS)

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return bool(self.sizes) or any(self.counts)

    def add(self, tokens: int, seconds: float, *, requests: int = 1) -> None:
        """One pass, or one request's part of the news of it."""
        if not (isfinite(seconds) and seconds > 0.0):
            return
        at, weight = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1), 1.0 / requests
        mean, n = self.means[at], self.counts[at]
        if not (n or self.cold[at]) and self.sizes:
            self.cold[at] = True
            if seconds > COLD * self(tokens):
                return
        if self.met[at]:
            seconds = min(max(seconds, 0.5 * mean), 2.0 * mean)
        age, self.passes, self.met[at] = self.passes - self.met[at], self.passes + weight, self.passes
        self.counts[at] = count = n / (1.0 + age / MEMORY) + weight
        self.means[at] = mean + weight * (seconds - mean) / count
        self.middles[at] += weight * (tokens - self.middles[at]) / count
        self.since += weight
        fresh = not n or self.since >= FRESH
        if fresh:
            self._fit()
        if not n:
            self.extra = []  # what was thought of passes of this size was a guess
        self.part += weight
        self.idle = 0.0 if tokens > requests else self.idle + weight
        if self.idle > IDLE:  # at a price that nobody drafts at, nobody would learn that it has fallen
            self.idle, self.extra = 0.0, []
        drafts = tokens > requests or not self.extra  # a plain pass says nothing of what others draft
        if self.part >= 1.0 and drafts if requests > 1 else fresh:
            self._price(tokens * (1.0 - weight))

    def usual(self, tokens: int) -> float:
        """Seconds of a pass of about this size, or 0 where none was seen before."""
        at = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)
        return self(tokens) if self.met[at] else 0.0

    def room(self, batch: int) -> int:
        """How many tokens each may draft in a batch of this size: passes are at most doubled at a time."""
        largest = self.sizes[-1] if self.sizes else 1
        return max(1, int(2 * largest / batch) - 1)

    def __call__(self, tokens: float) -> float:
        """Seconds of a pass over so many tokens; 0 before any was seen."""
        if not self.sizes:
            self._fit()
        sizes, values = self.sizes, self.values
        if not sizes:
            return 0.0
        if tokens <= sizes[0]:
            return values[0] - self._slope() * (sizes[0] - tokens)
        at = bisect_left(sizes, tokens)
        if at < len(sizes):
            x, y = sizes[at - 1], values[at - 1]
            return y + (values[at] - y) * (tokens - x) / (sizes[at] - x)
        if len(sizes) == 1:
            return values[0]
        slope = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
        return values[-1] + slope * (tokens - sizes[-1])

    def _slope(self) -> float:
        """Seconds for a token, below the smallest pass seen: what the least of the known slopes says."""
        sizes, values = self.sizes, self.values
        if len(sizes) == 1 or sizes[0] <= 1.0:
            return 0.0
        whole = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
        return min(whole, (values[1] - values[0]) / (sizes[1] - sizes[0]), values[0] / sizes[0])

    def table(self, first: float, count: int, width: float = 1.0) -> list[float]:
        """Seconds more than a pass of `first` tokens, for 0, 1, ... `count` times `width` more."""
        base = self(first)
        return [self(first + k * width) - base for k in range(count + 1)]

    def _price(self, others: float) -> None:
        """A pass in which the other requests had so many tokens."""
        now = self.table(others + 1.0, LONGEST)
        share = max(SETTLING, 1.0 / self.passes) if others and self.extra else 1.0
        self.extra = [old + share * (new - old) for old, new in zip(self.extra or now, now, strict=True)]
        self.part = 0.0

    def _fit(self) -> None:
        pools: list[tuple[float, float, int]] = []  # (mean, weight, knots)
        seen = [i for i, n in enumerate(self.counts) if n]
        for i in seen:
            mean, weight, size = self.means[i], self.counts[i], 1
            while pools and pools[-1][0] >= mean:
                before, other, more = pools.pop()
                mean = (mean * weight + before * other) / (weight + other)
                weight, size = weight + other, size + more
            pools.append((mean, weight, size))
        self.sizes = [self.middles[i] for i in seen]
        self.values = [mean for mean, _, size in pools for _ in range(size)]
        self.since = 0.0


@dataclass(slots=True)
class Load:
    """How busy the machine is: what passes take now over what they take by and large.

    Costs are learnt at different times: a busy spell that met only plain passes would make them look dear
    beside drafts that were timed in a quiet one. So every reading is divided by this first. What goes beyond
    twice or half is no busy spell: then the prices themselves have changed.
    """

    factor: float = 1.0

    def add(self, seconds: float, usual: float, *, requests: int = 1) -> None:
        """One pass, of a size whose usual seconds are known, or one request's part of it."""
        if usual > 0.0 and isfinite(seconds) and seconds > 0.0:
            now = min(max(seconds / usual, 1.0 / BUSIEST), BUSIEST)
            self.factor += 0.25 / requests * (now - self.factor)


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
    """Seconds of one drafter: of a call that drafts for one or more requests, and of reading text.

    A call takes as long as its longest draft. Its price is shared by those who were in it of late, so that
    each pays what a token more costs if all of them draft it. `width` is how many tokens a draft has for each
    that it can be right about at most: 1 for a chain, more for a tree. The very first call is not timed: it
    has what is done once.
    """

    calls: list[Line] = field(default_factory=list, metadata=LEARNED)
    mates: list[float] = field(default_factory=list, metadata=LEARNED)
    reading: Line = field(default_factory=Line, metadata=LEARNED)
    width: float = field(default=1.0, metadata=LEARNED)
    warm: bool = False

    def __post_init__(self) -> None:
        self.calls = self.calls or [Line() for _ in CLASSES]
        self.mates = self.mates or [1.0] * len(CLASSES)

    def drafted(self, longest: int, pending: int, seconds: float, *, mates: int = 1, batch: int = 1) -> None:
        """One call for `mates` of a batch, before which `pending` tokens of their texts were read.

        Many of them teach the price of reading, few that of drafting.
        """
        if not isfinite(seconds):
            return
        at = size_class(batch)
        call = self.calls[at]
        if not (self.warm or any(line.readings for line in self.calls)):
            self.warm = True
            return
        if pending > 16 * mates + 4 * longest and call.readings:
            self.reading.add(pending, max(0.0, seconds - call(longest)), starts=0.0)
            return
        call.add(max(1, longest), max(0.0, seconds - self.reading.each * pending))
        self.mates[at] += (1.0 if call.readings <= 1.0 else SETTLING) * (mates - self.mates[at])

    @property
    def tried(self) -> int:
        """How many calls were made, counted up to three, of which the first was not timed."""
        timed = max(call.readings for call in self.calls)
        return min(3, round(timed) + (self.warm or timed > 0.0))

    def shaped(self, tokens: int, length: int) -> None:
        """A draft had so many tokens where a length was asked for."""
        share = SETTLING if self.width > 1.0 else 1.0  # the first tree tells that there are trees
        self.width += share * (max(1.0, tokens / length) - self.width)

    def price(self, batch: int) -> tuple[float, float]:
        """Seconds of a draft for one request, as a start and for each of its length; NaN before any call."""
        at = size_class(batch)
        if not self.calls[at].readings:
            known = [k for k, call in enumerate(self.calls) if call.readings]
            if not known:
                return nan, nan
            at = min(known, key=lambda k: abs(k - at))
        call, mates = self.calls[at], self.mates[at]
        return call.start / mates, call.each * self.width / mates

    def read(self, tokens: int, seconds: float) -> None:
        """One pass over `tokens` of the text."""
        if tokens > 0 and isfinite(seconds):
            self.reading.add(tokens, seconds)


def size_class(batch: int) -> int:
    """The index of a batch's class in `CLASSES`."""
    return min(bisect_left(CLASSES, batch), len(CLASSES) - 1)


def nearest(costs: Sequence[PassCost], at: int) -> PassCost:
    """The costs of this class, or of the nearest one that is known."""
    if costs[at].known:
        return costs[at]
    known = [k for k, cost in enumerate(costs) if cost.known]
    return costs[min(known, key=lambda k: abs(k - at), default=at)]

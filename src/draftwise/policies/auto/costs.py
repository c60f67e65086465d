"""Seconds of target passes, of drafts and of reading, and the tokens that a second is worth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp, isfinite, nan
from typing import Any

from ...state.learned import LEARNED, adds, learned, mean_by, mean_over

KNOTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24, 28, 33, 40, 48, 64, 96, 128, 192, 256, 384, 512)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)  # batch sizes; a batch belongs to the first class that is not smaller
PASS_MEMORY = 64  # passes, of any size, after which what a mean rests on has lost half of its weight
FIT_EVERY = 8  # passes between two fits
MOST_DRAFTED = 16  # the longest draft in `extra`
BUSIEST = 2.0  # the highest load factor
PRICE_AGAIN = 512  # plain passes after which `extra` is computed again
DOUBT = 0.5  # passes: weight of the next smaller size in what is known of one that was seen long ago
COLD = 1.5  # times the expected seconds: a first pass of a new size that took more is ignored
SETTLING = 0.1  # weight of a new value in a moving average
BATCH_SETTLING = (
    0.01  # the same, for what others of a batch draft: were it fast, all would draft more at once
)


def _passes(cost: PassCost) -> float:
    """Return the passes behind what is known."""
    return sum(cost.counts)


def _newest(blank: Any, parts: Sequence[Any], name: str) -> Any:
    """When each size was last seen, in passes of all parts: as long ago as in the part that saw it last."""
    passes, found = sum(part.passes for part in parts), []
    for at in range(len(blank.met)):
        ages = [part.passes - part.met[at] for part in parts if part.met[at]]
        found.append(passes - min(ages) if ages else 0.0)
    return found


@dataclass(slots=True)
class PassCost:
    """Seconds of a target pass by its number of tokens: a mean for each range of sizes, made monotone.

    A pass of more tokens never costs less, so falling means are pooled (isotonic regression). A reading
    counts as at least half and at most twice the known mean of its range: an outlier moves the mean little, a
    lasting change moves it soon. The first pass of a new size is ignored if it takes more than `COLD` times
    the expected time, because kernels are prepared for a new shape. Where rows are padded, a size that
    was not seen for `PASS_MEMORY` passes starts again from the fit: passes are interrupted on a busy machine,
    and one that was must not make its size look too expensive for ever. Outside the sizes seen, the fit
    continues with its slope; with one size only, more tokens are taken to be free, so drafts grow step by
    step (`room`).

    `extra` is the seconds that a request adds to a pass with 0, 1, ... drafted tokens. In a batch they depend
    on the drafts of the other requests, so they are a moving average over what the others drafted: if all
    requests decide by this price, a pass is filled exactly as far as it pays. Where rows are padded to the
    longest, it is a request's part of what all of them add by drafting as much.
    """

    means: list[float] = field(default_factory=list, metadata=learned(mean_by("counts")))
    counts: list[float] = field(default_factory=list, metadata=learned(adds))
    middles: list[float] = field(default_factory=list, metadata=learned(mean_by("counts")))
    extra: list[float] = field(default_factory=list, metadata=learned(mean_over(_passes)))
    met: list[float] = field(default_factory=list, metadata=learned(_newest))
    passes: float = field(default=0.0, metadata=learned(adds))
    since: float = 0.0
    alone: bool = True
    padded: bool = False
    part: float = 1.0
    idle: float = 0.0
    cold: list[bool] = field(default_factory=lambda: [False] * len(KNOTS))  # its first pass was ignored
    tops: list[int] = field(default_factory=lambda: [0] * len(KNOTS))  # the largest pass of each range
    sizes: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    fitted: dict[float, float] = field(default_factory=dict)  # seconds by tokens, until the next fit

    def __post_init__(self) -> None:
        self.means = self.means or [0.0] * len(KNOTS)
        self.counts = self.counts or [0.0] * len(KNOTS)
        self.middles = self.middles or [0.0] * len(KNOTS)
        self.met = self.met or [0.0] * len(KNOTS)

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return bool(self.sizes) or any(self.counts)

    def add(self, tokens: int, seconds: float, *, requests: int = 1, padded: bool = False) -> None:
        """Learn one pass; with `requests` above 1, each of them reports it with that part of the weight.

        A `padded` pass has as many tokens for each request as for the one that drafted most.
        """
        if not (isfinite(seconds) and seconds > 0.0):
            return
        at, weight = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1), 1.0 / requests
        self.alone, self.padded = requests == 1, padded
        mean, n = self.means[at], self.counts[at]
        if not (n or self.cold[at]) and self.sizes:
            self.cold[at] = True
            if seconds > COLD * self(tokens):
                return
        largest = self.sizes[-1] if self.sizes else 0.0
        if not n and self.sizes:  # no token of a larger pass takes longer
            seconds = min(seconds, self.values[0] * max(1.0, tokens / self.sizes[0]))
        age = self.passes - self.met[at]
        if self.met[at]:
            if padded and age > PASS_MEMORY:
                mean = self(tokens)
            seconds = min(max(seconds, 0.5 * mean), 2.0 * mean)
        self.passes, self.met[at] = self.passes + weight, self.passes
        self.counts[at] = count = n * self._fresh(age) + weight
        self.means[at] = mean + weight * (seconds - mean) / count
        self.middles[at] += weight * (tokens - self.middles[at]) / count
        self.tops[at] = max(self.tops[at], tokens)
        self.since += weight
        fresh = not n or self.since >= FIT_EVERY or age > PASS_MEMORY
        if fresh:
            self._fit()
        if not n and tokens > largest:
            self.extra = []  # for this size it was extrapolated
        self.part += weight
        self.idle = 0.0 if tokens > requests else self.idle + weight
        if self.idle > PRICE_AGAIN:  # where the price stops all drafts, no pass could show that it fell
            self.idle, self.extra = 0.0, []
        drafts = tokens > requests or not self.extra  # a plain pass does not show what the others draft
        if self.part >= 1.0 and drafts if requests > 1 else fresh:
            if padded:
                self._price(requests, requests)
            else:
                self._price(tokens * (1.0 - weight) + 1.0)

    def usual(self, tokens: int) -> float:
        """Return seconds of a pass of about this size; 0 if none was seen."""
        at = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)
        return self.means[at] if self.met[at] else 0.0

    def room(self, batch: int) -> int:
        """Return tokens that each request of a batch may draft: passes at most double in size."""
        largest = self.sizes[-1] if self.sizes else 1
        return max(1, int(2 * largest / batch) - 1)

    def __call__(self, tokens: float) -> float:
        """Return seconds of a pass over so many tokens; 0 before any was seen."""
        if (known := self.fitted.get(tokens)) is None:
            if not self.sizes:
                self._fit()
            known = self._curve(tokens)
            if tokens == int(tokens):  # of other numbers there may be any
                self.fitted[tokens] = known
        return known

    def _curve(self, tokens: float) -> float:
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

    def _fresh(self, age: float) -> float:
        """Return what is left of a reading's weight after so many passes."""
        return exp(-age / PASS_MEMORY) if self.padded else 1.0 / (1.0 + age / PASS_MEMORY)

    def _slope(self) -> float:
        """Return seconds per token below the smallest pass seen: the smallest known slope."""
        sizes, values = self.sizes, self.values
        if len(sizes) == 1 or sizes[0] <= 1.0:
            return 0.0
        whole = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
        return min(whole, (values[1] - values[0]) / (sizes[1] - sizes[0]), values[0] / sizes[0])

    def table(self, first: float, count: int, width: float = 1.0) -> list[float]:
        """Return seconds beyond a pass of `first` tokens, for 0, 1, ... `count` times `width` more tokens."""
        base = self(first)
        return [self(first + k * width) - base for k in range(count + 1)]

    def _price(self, first: float, requests: int = 1) -> None:
        """Move `extra` towards a pass of `first` tokens and what so many requests draft, all the same."""
        now = [seconds / requests for seconds in self.table(first, MOST_DRAFTED, requests)]
        share = max(BATCH_SETTLING, 1.0 / self.passes) if first > 1.0 and self.extra else 1.0
        self.extra = [old + share * (new - old) for old, new in zip(self.extra or now, now, strict=True)]
        self.part = 0.0

    def _fit(self) -> None:
        """Fit a monotone curve through the means (isotonic regression, pool adjacent violators).

        What was seen long ago counts less, and that a size costs no more than the next smaller one counts
        beside it: where a few slow passes made drafts look too expensive, no pass would show that they are
        not. In a batch whose rows are not padded `extra` is computed again instead.
        """
        pools: list[tuple[float, float, int]] = []  # (mean, weight, knots)
        seen, before = [i for i, n in enumerate(self.counts) if n], 0.0
        for i in seen:
            mean, weight, size = self.means[i], self.counts[i], 1
            if before and (self.alone or self.padded):
                fresh = self._fresh(self.passes - 1.0 - self.met[i])
                doubt = DOUBT * (1.0 - fresh)
                mean = (fresh * weight * mean + doubt * before) / (fresh * weight + doubt)
            before = mean
            while pools and pools[-1][0] >= mean:
                higher, other, more = pools.pop()
                mean = (mean * weight + higher * other) / (weight + other)
                weight, size = weight + other, size + more
            pools.append((mean, weight, size))
        values = [mean for mean, _, size in pools for _ in range(size)]
        points = [(self.middles[i], value, self.tops[i]) for i, value in zip(seen, values, strict=True)]
        self.sizes, self.values = _with_tops(points)
        self.since = 0.0
        self.fitted.clear()


def _with_tops(points: Sequence[tuple[float, float, int]]) -> tuple[list[float], list[float]]:
    """Sizes and seconds of a curve through ranges: of each its mean size, mean seconds, and largest size.

    Up to its largest size a range has the slope that leads to it, where the one that leads to the next range
    is steeper: what larger passes cost begins there.
    """
    sizes, values = list[float](), list[float]()
    for k, (size, value, top) in enumerate(points):
        sizes.append(size)
        values.append(value)
        if 0 < k < len(points) - 1 and top > size:
            (before, less, _), (after, more, _) = points[k - 1], points[k + 1]
            slope = min((value - less) / (size - before), (more - value) / (after - size))
            sizes.append(top)
            values.append(value + slope * (top - size))
    return sizes, values


@dataclass(slots=True)
class Load:
    """Load factor of the machine: the seconds of current passes over their usual seconds.

    Costs are learned at different times. If the machine is busy during plain passes only, they would look
    expensive compared with drafts that were timed while it was idle. So every reading is divided by this
    factor first. Beyond a factor of 2, or below 1/2, the costs themselves are taken to have changed.
    """

    factor: float = 1.0

    def add(self, seconds: float, usual: float, *, requests: int = 1) -> None:
        """Learn one pass of a size whose `usual` seconds are known, reported by each of its `requests`."""
        if usual > 0.0 and isfinite(seconds) and seconds > 0.0:
            now = min(max(seconds / usual, 1.0 / BUSIEST), BUSIEST)
            self.factor += 0.25 / requests * (now - self.factor)


def size_class(batch: int) -> int:
    """Return the index of a batch's class in `BATCH_SIZES`."""
    return 0 if batch == 1 else min(bisect_left(BATCH_SIZES, batch), len(BATCH_SIZES) - 1)


def nearest(costs: Sequence[PassCost], at: int) -> PassCost:
    """Return the costs of this class, or of the nearest class that is known."""
    if costs[at].known:
        return costs[at]
    known = [k for k, cost in enumerate(costs) if cost.known]
    return costs[min(known, key=lambda k: abs(k - at), default=at)]


PRIOR_WEIGHT = 0.1  # weight of the reading of no tokens in no time
TRIED_CALLS = 3  # calls from which the cost of a drafter is known
FIRST_WAIT, WAIT_GROWTH, LONGEST_WAIT = (
    256.0,
    4.0,
    8192.0,
)  # rounds without a call, after which the cost is measured again


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
        """Return seconds for so many tokens."""
        return starts * self.start + self.each * tokens

    def add(self, tokens: float, seconds: float, *, starts: float = 1.0) -> None:
        """Learn one reading; `starts` is 0 if the seconds do not include the start.

        From the fifth reading on, seconds count as at least half and at most twice the expected value.
        """
        if self.readings >= 4.0:
            known = self(tokens, starts=starts)
            seconds = min(max(seconds, 0.5 * known), 2.0 * known)
        keep = 1.0 - 1.0 / PASS_MEMORY
        self.readings = keep * self.readings + 1.0
        w, n, s, nn, ns = (keep * x for x in self.sums)
        w, n, s = w + starts, n + starts * tokens, s + starts * seconds
        nn, ns = nn + tokens * tokens, ns + tokens * seconds
        self.sums = [w, n, s, nn, ns]
        area = (w + PRIOR_WEIGHT) * nn - n * n
        self.start, self.each = (s * nn - n * ns) / area, ((w + PRIOR_WEIGHT) * ns - n * s) / area
        if self.start < 0.0:
            self.start, self.each = 0.0, ns / nn
        elif self.each < 0.0:
            self.start, self.each = s / (w + PRIOR_WEIGHT), 0.0


def is_behind(pending: int, longest: int, mates: int) -> bool:
    """Return whether a call first reads so much that this takes a good part of its time."""
    return pending > 16 * mates + 4 * longest


def _calls(cost: DraftCost) -> float:
    """Return the readings behind what is known of a drafter."""
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
    wait: float = FIRST_WAIT

    def __post_init__(self) -> None:
        self.calls = self.calls or [Line() for _ in BATCH_SIZES]
        self.mates = self.mates or [1.0] * len(BATCH_SIZES)

    def drafted(self, longest: int, pending: int, seconds: float, *, mates: int = 1, batch: int = 1) -> None:
        """Learn one call for `mates` requests of a batch, which first read `pending` tokens of their texts.

        A call with many pending tokens updates the cost of reading, any other the cost of drafting.
        """
        if not isfinite(seconds):
            return
        at = size_class(batch)
        call = self.calls[at]
        behind, known = is_behind(pending, longest, mates), any(line.readings for line in self.calls)
        if not known and (not self.untimed or (behind and self.untimed < TRIED_CALLS)):
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
            if self.tried >= TRIED_CALLS:
                self.wait = FIRST_WAIT
            return
        self.idle += 1.0
        if self.idle >= self.wait:
            self.idle, self.wait = 0.0, min(WAIT_GROWTH * self.wait, LONGEST_WAIT)
            self.calls, self.untimed = [Line() for _ in BATCH_SIZES], 1

    @property
    def tried(self) -> int:
        """The number of calls, counted up to three; the first of them was not timed."""
        for call in self.calls:
            if call.readings >= 1.5:  # the usual case, which needs no maximum
                return TRIED_CALLS
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
        """Return seconds of a call: its start, and per token of its longest draft; NaN before any call."""
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


PLACES = 2  # without a match of any lookup, and with one


@dataclass(slots=True)
class Throughput:
    """Tokens and seconds of recent rounds, by whether a lookup had a match where the round began.

    A draft saves the rounds that would have written its tokens, so its price is what tokens cost at this kind
    of place. Where a lookup copies a long passage, tokens are cheap and a second is worth many of them; after
    its end they are expensive again, which one rate for all places would notice only some rounds later. A
    rate leans on that of all places with a weight of `lean` plain rounds. What is known fades by `memory`
    with each round at a place of its kind; in a batch by `together` with as many rounds as it has requests.

    What a drafter has read lasts for the rest of a text, so that reading is no part of these rounds. Its
    share of all time fades more slowly (`long`).
    """

    _: KW_ONLY
    memory: float = 0.95
    together: float = 0.85
    long: float = 0.99
    lean: float = 3.0
    tokens: list[float] = field(default_factory=lambda: [0.0] * PLACES, metadata=learned(adds))
    seconds: list[float] = field(default_factory=lambda: [0.0] * PLACES, metadata=learned(adds))
    rounds: float = 0.0
    reading: float = 0.0

    @property
    def writing(self) -> float:
        """The share of the time in which no drafter reads; 1 before the first round."""
        return self.rounds / (self.rounds + self.reading) if self.rounds else 1.0

    def rate(self, matched: bool, alone: float) -> float:
        """Return the rate of this kind of place; 0 before the first round."""
        seconds = sum(self.seconds)
        if seconds <= 0.0:
            return 0.0
        whole, weight = sum(self.tokens) / seconds, self.lean * alone
        if not alone:
            return whole
        return (self.tokens[matched] + weight * whole) / (self.seconds[matched] + weight)

    def add(self, matched: bool, tokens: int, seconds: float, *, requests: int = 1) -> None:
        """Learn one round; in a batch each of the requests reports its part of it."""
        keep = self.memory if requests == 1 else self.together ** (1.0 / requests)
        self.tokens[matched] = keep * self.tokens[matched] + tokens
        self.seconds[matched] = keep * self.seconds[matched] + seconds
        keep = self.long if requests == 1 else self.long ** (1.0 / requests)
        self.rounds, self.reading = keep * self.rounds + seconds, keep * self.reading

    def read(self, seconds: float) -> None:
        """Learn how long a drafter has read."""
        self.reading += seconds

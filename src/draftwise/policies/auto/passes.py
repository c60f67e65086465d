"""Cost of a target pass: seconds by the number of its tokens, and how busy the machine is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite
from typing import Any

from ...state.learned import adds, learned, mean_by, mean_over

KNOTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24, 28, 33, 40, 48, 64, 96, 128, 192, 256, 384, 512)
CLASSES = (1, 2, 4, 8, 16, 32)  # batch sizes; a batch belongs to the first class that is not smaller
MEMORY = 64  # passes, of any size, after which what a mean rests on has lost half of its weight
FRESH = 8  # passes between two fits
LONGEST = 16  # the longest draft in `extra`
BUSIEST = 2.0  # the highest load factor
IDLE = 512  # plain passes after which `extra` is computed again
DOUBT = 0.5  # passes: weight of the next smaller size in what is known of one that was seen long ago
COLD = 1.5  # times the expected seconds: a first pass of a new size that took more is ignored
SETTLING = 0.1  # weight of a new value in a moving average
OTHERS = 0.01  # the same, for what others of a batch draft: were it fast, all would draft more at once


def _passes(cost: PassCost) -> float:
    """The passes behind what is known."""
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
    was not seen for `MEMORY` passes starts again from the fit: passes are interrupted on a busy machine, and
    one that was must not make its size look too expensive for ever. Outside the sizes seen, the fit continues
    with its slope; with one size only, more tokens are taken to be free, so drafts grow step by step
    (`room`).

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
            if padded and age > MEMORY:
                mean = self(tokens)
            seconds = min(max(seconds, 0.5 * mean), 2.0 * mean)
        self.passes, self.met[at] = self.passes + weight, self.passes
        self.counts[at] = count = n * self._fresh(age) + weight
        self.means[at] = mean + weight * (seconds - mean) / count
        self.middles[at] += weight * (tokens - self.middles[at]) / count
        self.tops[at] = max(self.tops[at], tokens)
        self.since += weight
        fresh = not n or self.since >= FRESH or age > MEMORY
        if fresh:
            self._fit()
        if not n and tokens > largest:
            self.extra = []  # for this size it was extrapolated
        self.part += weight
        self.idle = 0.0 if tokens > requests else self.idle + weight
        if self.idle > IDLE:  # where the price stops all drafts, no pass could show that it fell
            self.idle, self.extra = 0.0, []
        drafts = tokens > requests or not self.extra  # a plain pass does not show what the others draft
        if self.part >= 1.0 and drafts if requests > 1 else fresh:
            if padded:
                self._price(requests, requests)
            else:
                self._price(tokens * (1.0 - weight) + 1.0)

    def usual(self, tokens: int) -> float:
        """Seconds of a pass of about this size; 0 if none was seen."""
        at = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)
        return self.means[at] if self.met[at] else 0.0

    def room(self, batch: int) -> int:
        """Tokens that each request of a batch may draft: passes at most double in size."""
        largest = self.sizes[-1] if self.sizes else 1
        return max(1, int(2 * largest / batch) - 1)

    def __call__(self, tokens: float) -> float:
        """Seconds of a pass over so many tokens; 0 before any was seen."""
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
        """What is left of a reading's weight after so many passes."""
        return exp(-age / MEMORY) if self.padded else 1.0 / (1.0 + age / MEMORY)

    def _slope(self) -> float:
        """Seconds per token below the smallest pass seen: the smallest known slope."""
        sizes, values = self.sizes, self.values
        if len(sizes) == 1 or sizes[0] <= 1.0:
            return 0.0
        whole = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
        return min(whole, (values[1] - values[0]) / (sizes[1] - sizes[0]), values[0] / sizes[0])

    def table(self, first: float, count: int, width: float = 1.0) -> list[float]:
        """Seconds beyond a pass of `first` tokens, for 0, 1, ... `count` times `width` more tokens."""
        base = self(first)
        return [self(first + k * width) - base for k in range(count + 1)]

    def _price(self, first: float, requests: int = 1) -> None:
        """Move `extra` towards a pass of `first` tokens and what so many requests draft, all the same."""
        now = [seconds / requests for seconds in self.table(first, LONGEST, requests)]
        share = max(OTHERS, 1.0 / self.passes) if first > 1.0 and self.extra else 1.0
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
    """The index of a batch's class in `CLASSES`."""
    return 0 if batch == 1 else min(bisect_left(CLASSES, batch), len(CLASSES) - 1)


def nearest(costs: Sequence[PassCost], at: int) -> PassCost:
    """The costs of this class, or of the nearest class that is known."""
    if costs[at].known:
        return costs[at]
    known = [k for k, cost in enumerate(costs) if cost.known]
    return costs[min(known, key=lambda k: abs(k - at), default=at)]

"""What passes and drafts cost in seconds, and how many tokens a second is worth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import isfinite, nan

from ...core.outcomes import RoundCost
from ...state.learned import LEARNED, fades, learned, mean_by, mean_of_known

BATCH_SIZES = (1, 2, 4, 8, 16, 32)  # a batch belongs to the first size that is not smaller
KNOTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24, 28, 33, 40, 48, 64, 96, 128, 192, 256, 384, 512)
WINDOW = 64  # passes, calls or rounds after which what a mean rests on has lost most of its weight
FADE = 1.0 - 1.0 / WINDOW
ENOUGH = 24  # tokens: a model is graded on so many, and its confidence may stop it once so many were tested
DOUBT = 0.25  # passes: weight of the next smaller size in what is known of one that was seen long ago
REFIT = 8  # passes of a size that was seen as often, after which the curve is fitted again
UNLIKE = 2.0  # times what is usual: more is an interruption, preparation, or another machine
TRIALS = (1, 1, 4)  # tokens of a drafter's first drafts: one untimed, then two lengths for start and slope
WAIT = 4 * WINDOW  # rounds without a call, after which a drafter is tried again
GROWTH, LONGEST_WAIT = 4, 128 * WINDOW  # of such rounds each time that a trial fails


SIZE_CLASS = tuple(bisect_left(BATCH_SIZES, batch) for batch in range(BATCH_SIZES[-1]))


def size_class(batch: int) -> int:
    """Return the index of a batch's class in `BATCH_SIZES`."""
    return SIZE_CLASS[batch] if batch < len(SIZE_CLASS) else len(BATCH_SIZES) - 1


@dataclass(slots=True)
class PassPrice:
    """Seconds of a target pass by its number of tokens: a mean for each range of sizes, made monotone.

    A pass of more tokens never costs less, so falling means are pooled (isotonic regression). The first pass
    of a new size is ignored if it took too long, because kernels are prepared for a new shape. A size that
    was seen long ago counts less, beside the assumption that it costs no more than the next smaller one:
    where a few slow passes made drafts look too expensive, no pass would show that they are not. Outside the
    sizes seen, the fit continues with its slope; with one size only, more tokens are taken to be free, so
    that drafts grow step by step (`room`).
    """

    means: list[float] = field(default_factory=list, metadata=learned(mean_by("counts")))
    counts: list[float] = field(default_factory=list, metadata=learned(fades))
    tokens: list[float] = field(default_factory=list, metadata=learned(mean_by("counts")))
    seen: list[float] = field(default_factory=list)  # the pass that last had a size; below 0: ignored
    passes: float = 0.0
    doubts: bool = True
    sizes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    more: dict[tuple[int, float], list[float]] = field(default_factory=dict)  # until the next fit

    def __post_init__(self) -> None:
        for values in (self.means, self.counts, self.tokens, self.seen):
            values += [0.0] * (len(KNOTS) - len(values))

    @property
    def has_readings(self) -> bool:
        return any(self.counts)

    def usual(self, tokens: int) -> float:
        """Return seconds of a pass of about this size; 0 if none was seen."""
        return self.means[min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)]

    def add(self, tokens: int, seconds: float, *, doubts: bool = True) -> None:
        """Learn one pass; in a batch whose rows are not padded no size is doubted: many are seen."""
        self.doubts = doubts
        if not (isfinite(seconds) and seconds > 0.0):
            return
        at = min(bisect_left(KNOTS, tokens), len(KNOTS) - 1)
        mean, count = self.means[at], self.counts[at]
        if count:
            seconds = min(seconds, UNLIKE * mean)
            count *= self._fresh(at)
        elif self.has_readings:
            if not self.seen[at] and seconds > UNLIKE * self(tokens):
                self.seen[at] = -1.0
                return
            seconds = min(seconds, self.seconds_of_smallest() * max(1.0, tokens / self.sizes[0]))
        self.seen[at] = self.passes
        self.passes += 1.0
        self.counts[at] = count + 1.0
        self.means[at] = mean + (seconds - mean) / (count + 1.0)
        self.tokens[at] += (tokens - self.tokens[at]) / (count + 1.0)
        if count < REFIT or self.passes % REFIT == 0.0:
            self.merged()

    def seconds_of_smallest(self) -> float:
        if not self.sizes:
            self._fit()
        return self.seconds[0]

    def room(self, batch: int) -> int:
        """Return tokens that each request of a batch may draft: passes at most double in size."""
        if not self.sizes:
            self._fit()
        return max(1, int(2 * self.sizes[-1] / batch) - 1) if self.sizes else 1

    def __call__(self, tokens: float) -> float:
        """Return seconds of a pass over so many tokens; 0 before any was seen."""
        if not self.sizes:
            self._fit()
        sizes, values = self.sizes, self.seconds
        if len(sizes) < 2:
            return values[0] if values else 0.0
        if tokens < sizes[0]:
            slope = min((values[1] - values[0]) / (sizes[1] - sizes[0]), values[0] / sizes[0])
            return values[0] + slope * (tokens - sizes[0])
        if tokens > sizes[-1]:
            return values[-1] + (values[-1] - values[0]) / (sizes[-1] - sizes[0]) * (tokens - sizes[-1])
        at = max(bisect_left(sizes, tokens), 1)
        part = (tokens - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return values[at - 1] + part * (values[at] - values[at - 1])

    def extra(self, first: int, count: int, width: float = 1.0) -> list[float]:
        """Return seconds beyond a pass of `first` tokens, for 0, 1, ... `count` times `width` more tokens."""
        table = self.more.get((first, width))
        if table is None or len(table) <= count:
            base = self(first)
            table = self.more[first, width] = [self(first + k * width) - base for k in range(count + 1)]
        return table

    def merged(self) -> None:
        """Forget the fit: the numbers are new ones."""
        self.sizes.clear()
        self.more.clear()

    restart = merged

    def _fresh(self, at: int, last: float = 0.0) -> float:
        """Return what is left of a reading's weight since this size was last seen, but for `last` passes."""
        return 1.0 / (1.0 + max(0.0, self.passes - last - self.seen[at]) / WINDOW)

    def _fit(self) -> None:
        """Fit a monotone curve through the means (pool adjacent violators)."""
        pools: list[tuple[float, float, int]] = []  # (mean, weight, knots)
        seen, before = [i for i, count in enumerate(self.counts) if count], 0.0
        for i in seen:
            fresh = self._fresh(i, 1.0)
            weight, doubt = fresh * self.counts[i], DOUBT * (1.0 - fresh) if before and self.doubts else 0.0
            mean = (weight * self.means[i] + doubt * before) / (weight + doubt)
            before, weight, size = mean, self.counts[i], 1
            while pools and pools[-1][0] >= mean:
                higher, other, more = pools.pop()
                mean = (mean * weight + higher * other) / (weight + other)
                weight, size = weight + other, size + more
            pools.append((mean, weight, size))
        self.sizes = [self.tokens[i] for i in seen]
        self.seconds = [mean for mean, _, size in pools for _ in range(size)]


@dataclass(slots=True)
class Line:
    """Seconds as `start` + `each` * tokens, by least squares with fading weights; neither is negative.

    The fit has one additional reading of 0 tokens in 0 seconds: as long as all readings have the same number
    of tokens, seconds are taken to be proportional to tokens.
    """

    start: float = field(default=0.0, metadata=learned(mean_by("readings")))
    each: float = field(default=0.0, metadata=learned(mean_by("readings")))
    readings: float = field(default=0.0, metadata=learned(fades))
    sums: list[float] = field(default_factory=lambda: [0.0] * 5, metadata=learned(fades))

    def __call__(self, tokens: float) -> float:
        """Return seconds for so many tokens."""
        return self.start + self.each * tokens

    def add(self, tokens: float, seconds: float) -> None:
        """Learn one reading."""
        if self.readings >= 4.0 and (usual := self(tokens)) > 0.0:
            seconds = min(seconds, UNLIKE * usual)
        self.readings = FADE * self.readings + 1.0
        w, n, s, nn, ns = (FADE * x for x in self.sums)
        w, n, s, nn, ns = w + 1.0, n + tokens, s + seconds, nn + tokens * tokens, ns + tokens * seconds
        self.sums = [w, n, s, nn, ns]
        w += 0.1  # the weight of the additional reading
        area = w * nn - n * n
        self.start, self.each = (s * nn - n * ns) / area, (w * ns - n * s) / area
        if self.start < 0.0:
            self.start, self.each = 0.0, ns / nn
        elif self.each < 0.0:
            self.start, self.each = s / w, 0.0


@dataclass(slots=True)
class DraftPrice:
    """Seconds of a drafter's calls by their deepest draft, for each class of batch, and of a token it reads.

    `width` is the number of tokens in a draft per token of depth: 1 for a chain, more for a tree. The first
    call is not timed, because it prepares kernels and memory.

    A drafter that looks too expensive is not called, and no call would show that it is not. So its price is
    forgotten, and it is tried like a new one, after so many rounds in which it could have drafted and was
    not called (`WAIT`).
    """

    calls: list[Line] = field(default_factory=list, metadata=LEARNED)
    reading: Line = field(default_factory=Line, metadata=LEARNED)
    width: float = field(default=1.0, metadata=learned(mean_of_known))
    untimed: int = 0
    idle: float = 0.0
    wait: int = WAIT

    def __post_init__(self) -> None:
        self.calls = self.calls or [Line() for _ in BATCH_SIZES]

    @property
    def trial(self) -> int:
        """The length of the draft that is to show what this drafter costs; 0 once that is known."""
        timed = max([call.readings for call in self.calls])
        calls = round(timed) + (self.untimed > 0 or timed > 0.0)
        return TRIALS[calls] if calls < len(TRIALS) else 0

    def add(self, depth: int, unread: int, seconds: float, batch: int, calls: int) -> float:
        """Learn one call for so many requests, which first read `unread` tokens of their texts.

        Returns the seconds of reading, if there was more of it than goes with drafts.
        """
        line, is_priced = self.calls[size_class(batch)], not self.trial
        behind = unread > 16 * calls + 4 * depth  # most of its time may be reading
        if not (self.untimed or any(one.readings for one in self.calls)):
            self.untimed = 1
        elif behind and line.readings:
            self.read(unread, seconds - line(depth))
        elif not behind:
            line.add(max(1, depth), max(0.0, seconds - self.reading.each * unread))
        self.idle = 0.0
        if is_priced:
            self.wait = WAIT
        return self.reading.each * unread if behind else 0.0

    def read(self, tokens: int, seconds: float) -> None:
        """Learn one pass over text that this drafter had not read."""
        if tokens > 0 and isfinite(seconds):
            self.reading.add(tokens, max(0.0, seconds))

    def left_out(self, rounds: float = 1.0) -> None:
        """Count rounds in which this drafter could have drafted, and was not called."""
        self.idle += rounds
        if self.idle >= self.wait and any(call.readings for call in self.calls):
            self.idle, self.wait = 0.0, min(GROWTH * self.wait, LONGEST_WAIT)
            self.calls, self.untimed = [Line() for _ in BATCH_SIZES], 1

    def __call__(self, batch: int) -> tuple[float, float]:
        """Return seconds of a call: its start, and per token of its depth; NaN before any call."""
        at = size_class(batch)
        if not self.calls[at].readings:
            timed = [k for k, call in enumerate(self.calls) if call.readings]
            at = min(timed, key=lambda k: abs(k - at), default=-1)
        line = self.calls[at]
        return (line.start, line.each) if line.readings else (nan, nan)


@dataclass(slots=True)
class Rate:
    """Tokens per second of recent rounds, by whether a lookup had a match where the round began.

    A draft saves the rounds that would have written its tokens, so a second is worth what it writes at this
    kind of place. Where a lookup copies a long passage, tokens are cheap; after its end they are expensive
    again, which one rate for all places would notice only some rounds later. A rate leans on that of all
    places with a weight of three plain rounds.
    """

    _: KW_ONLY
    memory: float = 0.95
    lean: float = 3.0
    tokens: list[float] = field(default_factory=lambda: [0.0, 0.0], metadata=learned(fades))
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0], metadata=learned(fades))

    def __call__(self, matched: bool, plain: float) -> float:
        """Return the rate of this kind of place; 0 before the first round."""
        seconds = sum(self.seconds)
        if seconds <= 0.0:
            return 0.0
        whole, weight = sum(self.tokens) / seconds, self.lean * plain
        return (self.tokens[matched] + weight * whole) / (self.seconds[matched] + weight) if plain else whole

    def add(self, matched: bool, tokens: int, seconds: float, requests: int) -> None:
        """Learn one round of one request; in a batch they share its seconds."""
        keep = self.memory ** (1.0 / requests)
        self.tokens[matched] = keep * self.tokens[matched] + tokens
        self.seconds[matched] = keep * self.seconds[matched] + seconds


@dataclass(slots=True)
class Call:
    """One call of a drafter: the tokens and depth of each of its drafts, and what they took.

    `unread` are the tokens of all texts that it read first.
    """

    drafter: int
    width: int
    drafts: list[tuple[int, int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unread: int = 0


@dataclass(slots=True)
class RoundCosts:
    """What a round took, and what is needed of its decision to learn from that: numbers only.

    `rounds` has seconds and tokens by request; `matched` are the requests in which a lookup had a match.
    """

    cost: RoundCost
    calls: Sequence[Call]
    rounds: Mapping[int, tuple[float, int]]
    matched: Collection[int]
    has_tree: bool
    is_trial: bool

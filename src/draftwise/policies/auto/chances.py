"""How surely the next tokens of a drafter are accepted, and what its own confidence is worth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp, log, sqrt

from ...core.drafts import Signals
from ...state.learned import adds, fades, learned, mean_by

MATCHES = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)  # the context of a match is the first that is not smaller
CONTEXTS = len(MATCHES) + 1
MEMORY = 0.997  # of a count, with each draft of its context
LEAN = (2.0, 8.0, 4.0)  # tests that lean on one half, on the next shorter match, on a draft's other tokens
CAUGHT = 0.3  # of a chain's misses, how many another node of a tree catches, as far as is known
LEAST = 0.02  # chances below this one count as none
CLASSES = 1024  # of the text's last token: its id modulo this number


def match_length(hint: float) -> int:
    """Return the context of a lookup's hint, the length of its match: 0 for none."""
    return bisect_left(MATCHES, hint)


@dataclass(slots=True)
class Acceptance:
    """Chances that the first 1, 2, ... tokens of a drafter are accepted, by context.

    For each context and place in the draft, the tokens that were tested and accepted are counted, and fade
    with each draft: what drafts do not reach fades too, so that it is tried again. A chance leans on those of
    the other places of its context, these on the next shorter match, and the shortest on one half. (Were the
    place one of those that it leans on, three failures of a new drafter would look like ten.)

    The next token is easier to guess after one token than after another: all chances of a draft are
    multiplied by the first tokens accepted after this `last` token of the text over those expected there.
    """

    longest: int
    contexts: int = CONTEXTS
    _: KW_ONLY
    memory: float = MEMORY
    tested: list[list[float]] = field(default_factory=list, metadata=learned(fades))
    accepted: list[list[float]] = field(default_factory=list, metadata=learned(fades))
    last_accepted: list[float] = field(default_factory=lambda: [0.0] * CLASSES, metadata=learned(fades))
    last_expected: list[float] = field(default_factory=lambda: [0.0] * CLASSES, metadata=learned(fades))
    sums: list[tuple[float, float]] = field(default_factory=list)  # of both counts, by context
    total: tuple[float, float] = (0.0, 0.0)  # of all contexts
    curves: list[Sequence[float] | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tested = self.tested or [[0.0] * self.longest for _ in range(self.contexts)]
        self.accepted = self.accepted or [[0.0] * self.longest for _ in range(self.contexts)]

    @property
    def seen(self) -> float:
        """How many tokens were tested recently."""
        return self._total()[0]

    @property
    def mean(self) -> float:
        """The chance of a token, all contexts and places together."""
        tested, accepted = self._total()
        return (accepted + 1.0) / (tested + 2.0)

    @property
    def confidence(self) -> float:
        """The chance of a token less one deviation, as a share of the chance."""
        tested, accepted = self._total()
        mean = (accepted + 1.0) / (tested + 2.0)
        return max(0.0, 1.0 - sqrt((1.0 / mean - 1.0) / (tested + 3.0)))

    def _total(self) -> tuple[float, float]:
        """Return the tokens tested and accepted in all contexts."""
        if not self.sums:
            self.sums = list(zip(map(sum, self.tested), map(sum, self.accepted), strict=True))
            self.curves = [None] * self.contexts
            self.total = sum(t for t, _ in self.sums), sum(a for _, a in self.sums)
        return self.total

    def learn(self, context: int, accepts: Sequence[float], last: int = -1) -> None:
        """A draft in this context had these chances to be accepted, one token after the other."""
        total = self._total()
        if last >= 0 and accepts and (expected := self._first(context)) >= LEAST:
            k = last % CLASSES
            self.last_accepted[k] = MEMORY * self.last_accepted[k] + accepts[0]
            self.last_expected[k] = MEMORY * self.last_expected[k] + expected
        keep, weight = self.memory, 1.0
        tested = [keep * n for n in self.tested[context]]
        accepted = [keep * n for n in self.accepted[context]]
        for k, accept in enumerate(accepts):
            tested[k] += weight
            weight *= accept
            accepted[k] += weight
            if weight <= 0.0:
                break
        self.tested[context], self.accepted[context] = tested, accepted
        before, now = self.sums[context], (sum(tested), sum(accepted))
        self.sums[context] = now
        self.total = total[0] + now[0] - before[0], total[1] + now[1] - before[1]
        for longer in range(context, self.contexts if context else 1):  # longer matches lean on this one
            self.curves[longer] = None

    def survival(self, context: int) -> Sequence[float]:
        """Return the chances that the first 1, 2, ... tokens are accepted, as far as they count."""
        self._total()
        curve = self.curves[context]
        if curve is None:
            curve = self.curves[context] = self._curve(context)
        return curve

    def after(self, last: int, context: int) -> Sequence[float]:
        """Return the chances of `survival`, corrected for the last token of the text."""
        curve = self.survival(context)
        expected = self.last_expected[k := last % CLASSES]
        if last < 0 or not expected or not curve:
            return curve
        factor = min((self.last_accepted[k] + LEAN[1]) / (expected + LEAN[1]), 1.0 / curve[0])
        return [factor * chance for chance in curve]

    def _others(self, context: int) -> tuple[float, float]:
        """Return the tests of all places of a context and those accepted, leaning on shorter matches."""
        half, shorter, _ = LEAN
        chance, weight = 0.5, half
        tested = accepted = 0.0
        for t, a in self.sums[min(1, context) : context + 1]:
            tested, accepted = t + weight, a + weight * chance
            chance, weight = accepted / tested, shorter
        return tested, accepted

    def _first(self, context: int) -> float:
        """Return the chance of a draft's first token; as a curve's, but for much less."""
        tested, accepted = self._others(context)
        t, a = self.tested[context][0], self.accepted[context][0]
        return (a + LEAN[2] * (accepted - a) / (tested - t)) / (t + LEAN[2])

    def _curve(self, context: int) -> Sequence[float]:
        tested, accepted = self._others(context)
        curve: list[float] = []
        alive, lean = 1.0, LEAN[2]
        for t, a in zip(self.tested[context], self.accepted[context], strict=True):
            alive *= (a + lean * (accepted - a) / (tested - t)) / (t + lean)
            if alive < LEAST:
                break
            curve.append(alive)
        return curve

    def merged(self) -> None:
        self.sums = []

    def restart(self) -> None:
        """Let what other texts have shown weigh no more than a few tests of each context."""
        self.sums = []
        for counts in zip(self.tested, self.accepted, strict=True):
            share = LEAN[2] / max(*counts[0], LEAN[2])
            for row in counts:
                row[:] = [share * n for n in row]
        for k, expected in enumerate(self.last_expected):
            share = LEAN[1] / max(expected, LEAN[1])
            self.last_accepted[k] *= share
            self.last_expected[k] *= share


@dataclass(slots=True)
class Siblings:
    """How often another node of a tree is right where the most likely one, which a chain has, is wrong."""

    missed: float = field(default=0.0, metadata=learned(fades))
    caught: float = field(default=0.0, metadata=learned(fades))

    def learn(self, *, caught: bool) -> None:
        """The most likely node of one depth was wrong."""
        self.missed = MEMORY * self.missed + 1.0
        self.caught = MEMORY * self.caught + caught

    def restart(self) -> None:
        """Let what other texts have shown weigh no more than what the share leans on."""
        keep = LEAN[2] / max(self.missed, LEAN[2])
        self.missed, self.caught = keep * self.missed, keep * self.caught

    @property
    def share(self) -> float:
        """The chance that another node is right where the most likely one is not."""
        return (self.caught + LEAN[2] * CAUGHT) / (self.missed + LEAN[2])

    def beside(self, chain: Sequence[float]) -> Sequence[float]:
        """Return the chances that 1, 2, ... tokens of a chain with siblings, after which nothing comes, are
        accepted."""
        share = self.share
        pairs = zip((1.0, *chain), chain, strict=False)
        return [chance + share * (before - chance) for before, chance in pairs]

    def survival(self, chain: Sequence[float]) -> Sequence[float]:
        """Return the chances that a path of a tree is right for 1, 2, ... tokens, from those of a chain."""
        share = self.share
        curve, before, alive = list[float](), 1.0, 1.0
        for chance in chain:
            each, before = chance / before, chance
            alive *= each + (1.0 - each) * share
            curve.append(alive)
        return curve


@dataclass(slots=True, eq=False)
class Calibration:
    """The chance that a token is accepted, from the probability that its drafter gave it.

    sigmoid(bias + slope * logit(probability)), by stochastic gradient steps on the log-loss whose size falls
    to 0.02, so that it follows slow change. It starts as the probability itself.
    """

    _: KW_ONLY
    bias: float = field(default=0.0, metadata=learned(mean_by("seen")))
    slope: float = field(default=1.0, metadata=learned(mean_by("seen")))
    seen: float = field(default=0.0, metadata=learned(adds))

    def score(self, signals: Signals) -> float:
        return _sigmoid(self.bias + self.slope * _logit(signals.chosen))

    def learn(self, probability: float, accept: float) -> None:
        """One tested token: its drafter's probability, and whether (or how surely) it was accepted."""
        x = _logit(probability)
        self.seen += 1.0
        step = max(0.02, 0.5 / (1.0 + 0.1 * self.seen))
        miss = accept - _sigmoid(self.bias + self.slope * x)
        self.bias += step * miss
        self.slope = max(0.0, self.slope + step * miss * x / (1.0 + x * x))


def _logit(p: float) -> float:
    p = min(max(1e-4, p), 1.0 - 1e-4)  # in this order NaN counts as the least: it would stay for good
    return log(p / (1.0 - p))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x)) if x > -30.0 else 0.0

"""How many tokens of a drafter are accepted, and what its own confidence is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp, log, sqrt

from ...core.drafts import Signals
from ...state.learned import LEARNED, adds, learned, mean_by

TOKEN_CLASSES = 1024  # of tokens: id modulo this number
TOKEN_LEAN = 8.0  # tests that a class leans on its context with
TOKEN_MEMORY = 0.995


def _zeros() -> list[float]:
    return [0.0] * TOKEN_CLASSES


@dataclass(slots=True)
class LastToken:
    """First tokens of drafts accepted after each class of last tokens, against those that were expected.

    The next token is easier to guess after one token than after another. This is known before a draft, and is
    no part of its context: so the chances that the context gives are multiplied by what was accepted after
    such a token over what these chances said. Both fade by `TOKEN_MEMORY` with each test. Ids are hashed, so
    a vocabulary of any size takes the same space.
    """

    accepted: list[float] = field(default_factory=_zeros, metadata=learned(adds))
    expected: list[float] = field(default_factory=_zeros, metadata=learned(adds))

    def __call__(self, token: int) -> float:
        """By how much the chances of a draft after this token differ from those of its context."""
        k = token % TOKEN_CLASSES
        return (self.accepted[k] + TOKEN_LEAN) / (self.expected[k] + TOKEN_LEAN)

    def learn(self, token: int, expected: float, accept: float) -> None:
        """A draft after this token: the chance of its first token by context, and that it was accepted."""
        k = token % TOKEN_CLASSES
        self.accepted[k] = TOKEN_MEMORY * self.accepted[k] + accept
        self.expected[k] = TOKEN_MEMORY * self.expected[k] + expected

    def restart(self) -> None:
        """Let what other texts have shown weigh no more than what is expected of a class without tests."""
        for k, expected in enumerate(self.expected):
            share = min(1.0, TOKEN_LEAN / max(expected, TOKEN_LEAN))
            self.accepted[k] *= share
            self.expected[k] *= share


NO_COUNTS: dict[int, tuple[list[float], list[float]]] = {}
LATER = 32  # drafts after which those of other texts count


@dataclass(slots=True)
class AcceptanceEstimate:
    """Chances that one drafter's k-th token is accepted given that those before were, per context.

    For every context and k the tokens that were tested and accepted are counted, fading by `memory` with each
    draft: what is known of a k that drafts do not reach fades too, so that it is tried again. A window that
    the text cut off counts as far as it goes. A chance leans on the mean over the other k of its context with
    a weight of `lean` tests, that on the mean of the next shorter match with a weight of `shorter` tests, and
    that of the shortest on one half with two. (Were k one of those that it leans on, three failures of a new
    drafter would look like ten, and it might not draft again.) A text has counts of its own that fade faster
    and lean on the common ones: a change of subject shows within a few drafts. The `last` token of the text
    before a draft makes all its chances higher or lower. What a file brings counts for at most `carried`
    tests of a first token: other texts may be of another kind.
    """

    contexts: int
    longest: int
    _: KW_ONLY
    memory: float = 0.997
    own_memory: float = 0.95
    lean: float = 4.0
    shorter: float = 8.0
    own_lean: float = 12.0
    least: float = 0.02
    carried: float = 3.0
    tested: list[list[float]] = field(default_factory=list, metadata=learned(adds))
    accepted: list[list[float]] = field(default_factory=list, metadata=learned(adds))
    last: LastToken = field(default_factory=LastToken, metadata=LEARNED)
    own: dict[int, dict[int, tuple[list[float], list[float]]]] = field(default_factory=dict)
    sums: list[tuple[float, float]] = field(default_factory=list)  # of `tested` and `accepted`, by context
    whole: tuple[float, float] = (0.0, 0.0)  # the sum of these
    leaned: list[tuple[float, float]] = field(default_factory=list)  # the same, and what they lean on
    curves: dict[int, dict[int, list[float]]] = field(default_factory=dict)  # by request and context
    deep: dict[int, int] = field(default_factory=dict)  # by context
    lessons: int = 0  # since `curves` was empty

    def __post_init__(self) -> None:
        zeros = [[0.0] * self.longest for _ in range(self.contexts)]
        self.tested = self.tested or [list(row) for row in zeros]
        self.accepted = self.accepted or [list(row) for row in zeros]

    @property
    def seen(self) -> float:
        """How many tokens were tested recently, in all contexts."""
        return self._sums()[0]

    @property
    def mean(self) -> float:
        """The chance of a token, all contexts and places together."""
        tested, accepted = self._sums()
        return (accepted + 1.0) / (tested + 2.0)

    def _sums(self) -> tuple[float, float]:
        """Return tokens tested and accepted recently, in all contexts."""
        if not self.sums:
            self.sums = list(zip(map(sum, self.tested), map(sum, self.accepted), strict=True))
            self.whole = sum(tested for tested, _ in self.sums), sum(accepted for _, accepted in self.sums)
        return self.whole

    @property
    def upper_bound(self) -> float:
        """The most that the chance of a first token may be in any context: its mean and two deviations."""
        pairs = [(a[0], t[0]) for a, t in zip(self.accepted, self.tested, strict=True)]
        return min(1.0, max((a + 1.0) / (t + 2.0) + 1.0 / sqrt(t + 2.0) for a, t in pairs))

    @property
    def confidence(self) -> float:
        """The chance of a token less one deviation, as a share of the chance."""
        tested, _ = self._sums()
        return max(0.0, 1.0 - sqrt((1.0 / self.mean - 1.0) / (tested + 3.0)))

    def learn(self, request: int, context: int, accepts: Sequence[float], token: int = -1) -> None:
        """A draft in this context had these chances to be accepted, one token after the other.

        `token` is the last one of the text before the draft, if that is known.
        """
        mine = self.own.setdefault(request, {})
        if (its := mine.get(context)) is None:
            its = mine[context] = ([0.0] * self.longest, [0.0] * self.longest)
        if token >= 0 and accepts:
            self.last.learn(token, self._first(context, its), accepts[0])
        self._forget(request, context)
        tested, accepted = self.tested[context], self.accepted[context]
        all_tested, all_accepted = self._sums()
        deep = self.deep[context] = max(self._deep(context), len(accepts))
        _add(tested, accepted, accepts, self.memory, deep)
        before, now = self.sums[context], (sum(tested), sum(accepted))
        self.sums[context] = now
        self.whole = all_tested + now[0] - before[0], all_accepted + now[1] - before[1]
        del self.leaned[context:]  # longer matches lean on this one
        _add(*its, accepts, self.own_memory, deep)

    def _deep(self, context: int) -> int:
        """How many tokens of a draft were ever tested in this context: there is nothing to fade beyond."""
        if (deep := self.deep.get(context)) is None:
            deep = sum(n > 0.0 for n in self.tested[context])
        return deep

    def after(self, token: int, request: int, context: int) -> Sequence[float]:
        """Return the chances of `survival`, corrected for the last token of the text."""
        curve = self.survival(request, context)
        factor = self.last(token) if token >= 0 and curve else 1.0
        if factor == 1.0:  # as after a token that is new
            return curve
        factor = min(factor, 1.0 / curve[0])
        return [factor * chance for chance in curve]

    def survival(self, request: int, context: int) -> list[float]:
        """Return the chances that the first 1, 2, ... tokens are accepted, as far as they are above `least`.

        A curve is computed again when its own text has shown something; what other texts show counts `LATER`
        drafts later at most. The list is not to be changed.
        """
        mine = self.curves.setdefault(request, {})
        curve = mine.get(context)
        if curve is None:
            curve = mine[context] = self.curve(request, context)
        return curve

    def _forget(self, request: int, context: int) -> None:
        """This text has shown something: its curve of this context is old, and now and then all are."""
        self.lessons += 1
        if self.lessons < LATER:
            if (curves := self.curves.get(request)) is not None:
                curves.pop(context, None)
        else:
            self.lessons = 0
            self.curves.clear()

    def _first(self, context: int, mine: tuple[list[float], list[float]]) -> float:
        """Return the chance of a first token in this context, whatever the last one of the text is."""
        tested, accepted = self.tested[context][0], self.accepted[context][0]
        all_tested, all_accepted = self._leaned(context)
        lean, mean = self.own_lean, (all_accepted - accepted) / (all_tested - tested)
        chance = (accepted + self.lean * mean) / (tested + self.lean)
        return (mine[1][0] + lean * chance) / (mine[0][0] + lean)

    def _leaned(self, context: int) -> tuple[float, float]:
        """Return tokens tested and accepted over all k of this context, and those that it leans on."""
        leaned = self.leaned
        if len(leaned) <= context:
            self._sums()
            for k in range(len(leaned), context + 1):
                tested, accepted = self.sums[k]
                below, weight = (leaned[k - 1][1] / leaned[k - 1][0], self.shorter) if k > 1 else (0.5, 2.0)
                leaned.append((tested + weight, accepted + weight * below))
        return leaned[context]

    def curve(self, request: int, context: int) -> list[float]:
        """Compute the chances of `survival` from the present counts.

        The chance of the k-th token is (accepted + lean * mean) / (tested + lean), where the mean is over the
        other k of this context. Counts of the request itself lean on that chance in the same way.
        """
        tested, accepted = self.tested[context], self.accepted[context]
        lean, own_lean, least = self.lean, self.own_lean, self.least
        all_t, all_a = self._leaned(context)
        mine = self.own.get(request, NO_COUNTS).get(context)
        curve: list[float] = []
        alive = 1.0
        if mine is None:
            for t, a in zip(tested, accepted, strict=True):
                alive *= (a + lean * (all_a - a) / (all_t - t)) / (t + lean)
                if alive < least:
                    break
                curve.append(alive)
            return curve
        for t, a, mine_t, mine_a in zip(tested, accepted, *mine, strict=True):
            chance = (a + lean * (all_a - a) / (all_t - t)) / (t + lean)
            alive *= (mine_a + own_lean * chance) / (mine_t + own_lean)
            if alive < least:
                break
            curve.append(alive)
        return curve

    def restart(self) -> None:
        """Let what other texts have shown weigh no more than `carried` tests of each context."""
        self.sums, self.leaned = [], []
        self.deep.clear()
        self.curves.clear()
        for counts in zip(self.tested, self.accepted, strict=True):
            share = min(1.0, self.carried / max(*counts[0], self.carried))
            for row in counts:
                row[:] = [share * n for n in row]

    def close(self, request: int) -> None:
        """Forget what one text alone has shown."""
        self.own.pop(request, None)
        self.curves.pop(request, None)


def _add(
    tested: list[float], accepted: list[float], accepts: Sequence[float], memory: float, deep: int
) -> None:
    tested[:deep] = [memory * n for n in tested[:deep]]
    accepted[:deep] = [memory * n for n in accepted[:deep]]
    weight = 1.0
    for k, accept in enumerate(accepts):
        tested[k] += weight
        accepted[k] += weight * accept
        weight *= accept
        if weight <= 0.0:
            break


@dataclass(slots=True, eq=False)
class Calibration:
    """The chance that a token is accepted, from the probability that its drafter gave it.

    sigmoid(bias + slope * logit(probability)), fitted online by stochastic gradient steps on the log-loss
    whose size falls to `least`, so that it follows slow change. It starts as the probability itself.
    """

    _: KW_ONLY
    least: float = 0.02
    bias: float = field(default=0.0, metadata=learned(mean_by("seen")))
    slope: float = field(default=1.0, metadata=learned(mean_by("seen")))
    seen: float = field(default=0.0, metadata=learned(adds))

    def score(self, signals: Signals) -> float:
        """Return the chance that this token is accepted."""
        return _sigmoid(self.bias + self.slope * _logit(signals.chosen))

    def learn(self, chosen: float, accept: float) -> None:
        """One tested token: its drafter's probability, and whether (or how surely) it was accepted."""
        x = _logit(chosen)
        self.seen += 1.0
        step = max(self.least, 0.5 / (1.0 + 0.1 * self.seen))
        miss = accept - _sigmoid(self.bias + self.slope * x)
        self.bias += step * miss
        self.slope = max(0.0, self.slope + step * miss * x / (1.0 + x * x))


def _logit(p: float) -> float:
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return log(p / (1.0 - p))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x)) if x > -30.0 else 0.0

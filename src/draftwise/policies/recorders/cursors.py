"""What one text says of an arm that did not write it: numbers only.

A drafter of distribution q is graded on each token x of a text of distribution p: a = min(1, q(x)/p(x)) and
beta = sum_v min(p(v), q(v)). In speculative sampling the chance that its token was accepted, *given* that the
text continued with x, is a (and beta before x is known). So along one text

    P(the first k drafted tokens are accepted) = E[a_1 ... a_k] = E[a_1 ... a_(k-1) beta_k].

Three forms of that estimate: `rb`, the second, with its last factor integrated out (Rao-Blackwell), which is
unbiased and has the least variance; `ratio`, the first, which needs one number per token and no row; and
`product`, beta_1 ... beta_k, as HedgeSpec's Theorem 3 (arXiv 2510.20064) is reported: exact under greedy
decoding and biased under sampling, by -Cov(a_1, beta_2) at k = 2 and alike beyond. All three agree under
greedy, where a = beta is 0 or 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Protocol

from ...core.arms import NEVER, Arm, Stop
from ...core.drafts import Draft, Signals
from ...core.outcomes import Grade
from ...core.stops import factor, stop
from ...errors import UserError

FORMS = ("rb", "ratio", "product")


class Cursor:
    """An arm's own rounds on a text that others wrote: its virtual cursor.

    The arm's round under way has j accepted tokens with some chance, for every j: a small Markov chain,
    driven by the grades of its drafter. Nothing is drawn at random and nothing is late; under greedy one
    chance is 1, and the cursor is where the arm's own round would stand.
    """

    __slots__ = ("_done", "_open", "form", "length", "stops")

    def __init__(self, length: int, *, stops: tuple[Stop, ...] = (NEVER,), form: str = "rb") -> None:
        if form not in FORMS:
            raise UserError(f"form={form}: choose from {', '.join(FORMS)}")
        self.length, self.stops, self.form = length, stops, form
        self._open: list[_State] = []
        self._done = 0.0  # the chance that the draft has ended and the target's own token comes next
        self._begin(1.0)

    @property
    def fresh(self) -> bool:
        """Whether a round begins here for certain."""
        return not self._done and len(self._open) == 1 and self._open[0].accepted == 0

    def step(self, grade: Grade) -> float:
        """The chance that a round of the arm ends with this token, so that the next one begins after it.

        Form `product` takes beta for a all through.
        """
        ends = restart = self._done
        states, self._open, self._done = self._open, [], 0.0
        for state in states:
            accept, integrated = _factors(grade, state.accepted, self.form)
            ends += state.mass * (1.0 - integrated)
            restart += state.mass * (1.0 - accept)
            if accept > 0.0:
                self._advance(state, state.mass * accept, grade.signals)
        if restart > 0.0:
            self._begin(restart)
        return ends

    def _begin(self, mass: float) -> None:
        if self.length:
            self._open.append(_State(0, mass, 1.0, None))
        else:
            self._done += mass

    def _advance(self, state: _State, mass: float, now: Signals | None) -> None:
        joint = state.joint * _factor(self.stops, now, state.accepted)
        stopped = _stops(self.stops, now, state.accepted, state.previous, joint)
        if stopped or state.accepted + 1 >= self.length:
            self._done += mass
        else:
            self._open.append(_State(state.accepted + 1, mass, joint, now))


class _State:
    __slots__ = ("accepted", "joint", "mass", "previous")

    def __init__(self, accepted: int, mass: float, joint: float, previous: Signals | None) -> None:
        self.accepted, self.mass, self.joint, self.previous = accepted, mass, joint, previous


def window(
    grades: Sequence[Grade], length: int, *, form: str = "rb", stops: tuple[Stop, ...] = (NEVER,)
) -> float:
    """The expected chunk of a round that starts before `grades[0]`, its own token included: 1 to length + 1.

    HedgeSpec's estimate, 1 + sum over k of the chance that the first k tokens are accepted. Where the text
    ends before `length` tokens, the later terms are 0, as they are for the true chunk.
    """
    total, survival, joint = 1.0, 1.0, 1.0
    previous: Signals | None = None
    for position, grade in enumerate(grades[:length]):
        accept, integrated = _factors(grade, position, form)
        total += survival * integrated
        survival *= accept
        now = grade.signals
        joint *= _factor(stops, now, position)
        if survival <= 0.0 or _stops(stops, now, position, previous, joint):
            break
        previous = now
    return total


def weighted(
    grades: Sequence[Grade],
    played: Sequence[float],
    accepted: int,
    length: int,
    *,
    form: str = "rb",
    stops: tuple[Stop, ...] = (NEVER,),
) -> float:
    """The same from the tokens of one round alone, where another drafter played and had `accepted` accepted.

    Term k was seen if the first k - 1 tokens were accepted, which had the chance `played[0]` ...
    `played[k - 2]`, that drafter's own `accept` of each: divided by it, the term needs no later tokens and is
    unbiased, with more variance, for an arm no longer than the played draft, where the played drafter gives
    every token some chance that the other does. Under greedy it does not, and the estimate is cut off at the
    round's end; a longer arm is cut off one token after the played draft.
    """
    total, survival, seen, joint = 1.0, 1.0, 1.0, 1.0
    previous: Signals | None = None
    for k, grade in enumerate(grades[: min(length, accepted + 1)]):
        accept, integrated = _factors(grade, k, form)
        total += survival * integrated / seen
        survival *= accept
        seen *= played[k]
        now = grade.signals
        joint *= _factor(stops, now, k)
        if survival <= 0.0 or seen <= 0.0 or _stops(stops, now, k, previous, joint):
            break
        previous = now
    return total


def _factors(grade: Grade, place: int, form: str) -> tuple[float, float]:
    """What a token in this place of a draft counts with where more follows, and where it is the last."""
    accept, overlap = grade.at(place)
    if form == "ratio" or isnan(overlap):
        return accept, accept
    return (overlap if form == "product" else accept), overlap


def _factor(stops: tuple[Stop, ...], now: Signals | None, position: int) -> float:
    return factor(stops[min(position, len(stops) - 1)], now, position=position) if now else 1.0


def _stops(
    stops: tuple[Stop, ...], now: Signals | None, position: int, previous: Signals | None, joint: float
) -> bool:
    rule = stops[min(position, len(stops) - 1)]
    if now is None or rule.rule == "never":
        return False
    return bool(stop(rule, now, position=position, previous=previous, joint=joint))


Chance = Callable[[int], float]
"""The target's probability of a token at the present position, before it is known which one came."""

MISS = Grade(0.0, 0.0)
NOTHING = Draft()
LOST = -2


class Track(Protocol):
    """One arm on one text, token by token. A `lookup`'s rounds hold the draft it made where they begin."""

    lookup: bool

    def begins(self, *, played: bool) -> bool:
        """Return whether a round to be scored begins here; `played` where one was really played from here."""

    def begin(self, draft: Draft) -> None: ...

    def step(self, token: int, grade: Grade | None, chance: Chance) -> Sequence[float]:
        """One more committed token, with its grade for a model; returns the losses that are now known."""

    def cut(self, played: Sequence[float], accepted: int) -> Sequence[float]:
        """Return a round of the played drafter has ended: what can be scored of it without waiting."""

    def finish(self) -> Sequence[float]:
        """Return the text has ended of itself: what waited for more of it is known now."""


class Path:
    """How far a text has come down a draft that is compared with it: a chain, or a tree of picked tokens.

    A tree's grade is the target's probability of all children together, of which one is accepted if the text
    continues with it: HedgeSpec's Theorem 2 (arXiv 2510.20064), in the tree grown where the round began.
    """

    __slots__ = ("_draft", "_node")

    def __init__(self, draft: Draft) -> None:
        self._draft, self._node = draft, LOST if not draft.tokens else -1

    def step(self, token: int, chance: Chance) -> Grade:
        """One more token of the text; it is lost once it went another way than any child."""
        if self._node == LOST:
            return MISS
        below = [i for i, parent in enumerate(self._draft.parents) if parent == self._node]
        tokens = [self._draft.tokens[i] for i in below]
        mass = sum(chance(child) for child in dict.fromkeys(tokens))
        self._node = below[tokens.index(token)] if token in tokens else LOST
        return Grade(float(self._node != LOST), mass)


class Rounds:
    """The arm's own rounds, one after the other; a token's loss is the chance that a round begins with it."""

    __slots__ = ("_begins", "_cursor", "_path", "lookup")

    def __init__(self, arm: Arm, *, form: str, lookup: bool) -> None:
        stops = (NEVER,) if lookup else arm.stops  # a lookup's drafts have been stopped already
        self._cursor, self.lookup = Cursor(arm.length, stops=stops, form=form), lookup
        self._path, self._begins = Path(NOTHING), 1.0

    def begins(self, *, played: bool) -> bool:
        """Return a lookup drafts where its own last round has ended."""
        return self.lookup and self._cursor.fresh

    def begin(self, draft: Draft) -> None:
        """Hold the draft made here."""
        self._path = Path(draft)

    def step(self, token: int, grade: Grade | None, chance: Chance) -> Sequence[float]:
        """One loss for every token."""
        if grade is None:
            grade = self._path.step(token, chance)
        begins, self._begins = self._begins, self._cursor.step(grade)
        return (begins,)

    def cut(self, played: Sequence[float], accepted: int) -> Sequence[float]:
        """Nothing waits."""
        return ()

    def finish(self) -> Sequence[float]:
        """Nothing waits."""
        return ()


@dataclass(slots=True)
class _Window:
    path: Path
    grades: list[Grade] = field(default_factory=list)

    def add(self, token: int, grade: Grade | None, chance: Chance) -> None:
        self.grades.append(self.path.step(token, chance) if grade is None else grade)


class Windows:
    """HedgeSpec's windows of `span` tokens: at every token or where played rounds began, every `thin`-th."""

    __slots__ = (
        "_arm",
        "_count",
        "_form",
        "_open",
        "_rounds",
        "_span",
        "_stops",
        "_thin",
        "_weigh",
        "lookup",
    )

    def __init__(
        self, arm: Arm, span: int, *, form: str, lookup: bool, rounds: bool, thin: int, weigh: bool
    ) -> None:
        self._arm, self._span, self._form, self.lookup = arm, span, form, lookup
        self._rounds, self._thin, self._weigh = rounds, thin, weigh
        self._stops = (NEVER,) if lookup else arm.stops  # a lookup's drafts have been stopped already
        self._count = 0
        self._open: deque[_Window] = deque()

    def begins(self, *, played: bool) -> bool:
        """At every token, or at every played round, one in `thin`."""
        if self._rounds and not played:
            return False
        self._count += 1
        return (self._count - 1) % self._thin == 0

    def begin(self, draft: Draft) -> None:
        """Open a window, with the draft that a lookup made here."""
        self._open.append(_Window(Path(draft)))

    def step(self, token: int, grade: Grade | None, chance: Chance) -> Sequence[float]:
        """Return the loss of the oldest window when its span is full."""
        for one in self._open:
            one.add(token, grade, chance)
        if self._weigh or not self._open or len(self._open[0].grades) < self._span:
            return ()
        return (self._loss(self._open.popleft()),)

    def cut(self, played: Sequence[float], accepted: int) -> Sequence[float]:
        """With weights, the loss of the round's window, from the round's own tokens."""
        if not self._weigh or not self._open:
            return ()
        grades = self._open.popleft().grades
        length, stops = min(self._arm.length, self._span), self._stops
        return (self._scale(weighted(grades, played, accepted, length, form=self._form, stops=stops)),)

    def finish(self) -> Sequence[float]:
        """Return all open windows: the terms after the end of the text are 0."""
        losses = [self._loss(one) for one in self._open]
        self._open.clear()
        return losses

    def _loss(self, one: _Window) -> float:
        length = min(self._arm.length, self._span)
        return self._scale(window(one.grades, length, form=self._form, stops=self._stops))

    def _scale(self, chunk: float) -> float:
        # A window of one token asks only whether it is accepted: HedgeSpec's acceptance loss, 1 - gamma.
        return 2.0 - chunk if self._span == 1 else 1.0 - chunk / (self._span + 1)

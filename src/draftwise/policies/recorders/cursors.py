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
from typing import TypeAlias

from ...core.arms import NEVER, Arm, Stop
from ...core.drafts import Draft, Signals
from ...core.outcomes import Grade
from ...core.stops import factor, stop

FORMS = ("rb", "ratio", "product")
Stops: TypeAlias = tuple[Stop, ...]


@dataclass(slots=True)
class _State:
    accepted: int
    mass: float
    joint: float = 1.0
    previous: Signals | None = None


class Cursor:
    """An arm's own rounds on a text that others wrote: its virtual cursor.

    The arm's round under way has j accepted tokens with some chance, for every j: a small Markov chain,
    driven by the grades of its drafter. Nothing is drawn at random and nothing is late; under greedy one
    chance is 1, and the cursor is where the arm's own round would stand.
    """

    __slots__ = ("_done", "_open", "form", "length", "stops")

    def __init__(self, length: int, *, stops: Stops = (NEVER,), form: str = "rb") -> None:
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
            self._open.append(_State(0, mass))
        else:
            self._done += mass

    def _advance(self, state: _State, mass: float, now: Signals | None) -> None:
        joint = state.joint * _factor(self.stops, now, state.accepted)
        stopped = _stops(self.stops, now, state.accepted, state.previous, joint)
        if stopped or state.accepted + 1 >= self.length:
            self._done += mass
        else:
            self._open.append(_State(state.accepted + 1, mass, joint, now))


def window(
    grades: Sequence[Grade],
    length: int,
    *,
    form: str = "rb",
    stops: Stops = (NEVER,),
    played: Sequence[float] | None = None,
) -> float:
    """The expected chunk of a round that starts before `grades[0]`, its own token included: 1 to length + 1.

    HedgeSpec's estimate, 1 + sum over k of the chance that the first k tokens are accepted. Where the text
    ends before `length` tokens, the later terms are 0, as they are for the true chunk.

    With `played` the grades are of the tokens of one round in which another drafter played, up to its first
    rejection. Term k was seen if the first k - 1 tokens were accepted, which had the chance `played[0]` ...
    `played[k - 2]`, that drafter's own `accept` of each: divided by it, the term needs no later tokens and is
    unbiased, with more variance, for an arm no longer than the played draft, where the played drafter gives
    every token some chance that the other does. Under greedy it does not, and the estimate is cut off at the
    round's end; a longer arm is cut off one token after the played draft.
    """
    total, survival, seen, joint = 1.0, 1.0, 1.0, 1.0
    previous: Signals | None = None
    for k, grade in enumerate(grades[:length]):
        accept, integrated = _factors(grade, k, form)
        total += survival * integrated / seen
        survival *= accept
        seen *= 1.0 if played is None else played[k]
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


def _factor(stops: Stops, now: Signals | None, position: int) -> float:
    return factor(stops[min(position, len(stops) - 1)], now, position=position) if now else 1.0


def _stops(stops: Stops, now: Signals | None, position: int, previous: Signals | None, joint: float) -> bool:
    rule = stops[min(position, len(stops) - 1)]
    if now is None or rule.rule == "never":
        return False
    return bool(stop(rule, now, position=position, previous=previous, joint=joint))


Chance = Callable[[int], float]
"""The target's probability of a token at the present position, before it is known which one came."""

LOST = -2


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
            return Grade(0.0, 0.0)
        below = [i for i, parent in enumerate(self._draft.parents) if parent == self._node]
        tokens = [self._draft.tokens[i] for i in below]
        mass = sum(chance(child) for child in dict.fromkeys(tokens))
        self._node = below[tokens.index(token)] if token in tokens else LOST
        return Grade(float(self._node != LOST), mass)


class Rounds:
    """One arm on one text: its own rounds, one after the other, with a loss for each token, the chance that a
    round begins with it. A `lookup`'s rounds hold the draft that it made where they begin."""

    __slots__ = ("_begins", "_cursor", "_path", "lookup")

    def __init__(self, arm: Arm, *, form: str, lookup: bool) -> None:
        self._cursor, self.lookup = Cursor(arm.length, stops=_own_stops(arm, lookup), form=form), lookup
        self._path, self._begins = Path(Draft()), 1.0

    def begins(self, *, played: bool) -> bool:
        """Return whether a round to be scored begins here: a lookup drafts where its own last one has ended.

        `played` says whether a round was really played from here.
        """
        return self.lookup and self._cursor.fresh

    def begin(self, draft: Draft) -> None:
        """Hold the draft made here."""
        self._path = Path(draft)

    def step(self, token: int, grade: Grade | None, chance: Chance) -> Sequence[float]:
        """One more committed token, with its grade for a model; returns the losses that are now known."""
        if grade is None:
            grade = self._path.step(token, chance)
        begins, self._begins = self._begins, self._cursor.step(grade)
        return (begins,)


@dataclass(slots=True)
class Windows:
    """HedgeSpec's windows of `span` tokens: at every token or where played rounds began, every `thin`-th.

    Methods as those of `Rounds`. A window is open with the path of its draft and the grades so far. With
    `weigh` it is scored at the end of its round (`window`), else when it has `span` tokens.
    """

    arm: Arm
    span: int
    form: str
    lookup: bool
    rounds: bool
    thin: int
    weigh: bool
    count: int = 0
    open: deque[tuple[Path, list[Grade]]] = field(default_factory=deque)

    def begins(self, *, played: bool) -> bool:
        if self.rounds and not played:
            return False
        self.count += 1
        return (self.count - 1) % self.thin == 0

    def begin(self, draft: Draft) -> None:
        self.open.append((Path(draft), []))

    def step(self, token: int, grade: Grade | None, chance: Chance) -> Sequence[float]:
        for path, grades in self.open:
            grades.append(path.step(token, chance) if grade is None else grade)
        if self.weigh or not self.open or len(self.open[0][1]) < self.span:
            return ()
        return (self._loss(self.open.popleft()[1]),)

    def cut(self, played: Sequence[float], accepted: int) -> Sequence[float]:
        """A round of the played drafter has ended: return what can be scored of it without waiting."""
        return (self._loss(self.open.popleft()[1][: accepted + 1], played),) if self.open else ()

    def finish(self) -> Sequence[float]:
        """The text has ended of itself: return what waited for more of it."""
        losses = [self._loss(grades) for _, grades in self.open]
        self.open.clear()
        return losses

    def _loss(self, grades: Sequence[Grade], played: Sequence[float] | None = None) -> float:
        length, stops = min(self.arm.length, self.span), _own_stops(self.arm, self.lookup)
        chunk = window(grades, length, form=self.form, stops=stops, played=played)
        # A window of one token asks only whether it is accepted: HedgeSpec's acceptance loss, 1 - gamma.
        return 2.0 - chunk if self.span == 1 else 1.0 - chunk / (self.span + 1)


Track: TypeAlias = Rounds | Windows


def _own_stops(arm: Arm, lookup: bool) -> Stops:
    """The arm's stop rules; a lookup's drafts have been stopped already."""
    return (NEVER,) if lookup else arm.stops

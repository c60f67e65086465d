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

from collections.abc import Sequence
from math import isnan

from ...core.arms import NEVER, Stop
from ...core.drafts import Signals
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

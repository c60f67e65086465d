"""Where an arm's rounds begin on a committed text, and what each costs it: numbers only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...core.arms import NEVER, Arm
from ...core.drafts import Draft
from ...core.outcomes import Grade
from .cursors import Cursor, weighted, window

Chance = Callable[[int], float]
"""The target's probability of a token at the present position, before it is known which one came."""

MISS = Grade(0.0, 0.0)
NOTHING = Draft()
LOST = -2


class Track(Protocol):
    """One arm on one text, token by token. A `lookup`'s rounds hold the draft it made where they begin."""

    lookup: bool

    def begins(self, *, played: bool) -> bool:
        """Whether a round to be scored begins here; `played` where one was really played from here."""

    def begin(self, draft: Draft) -> None: ...

    def step(self, token: int, grade: Grade | None, chance: Chance) -> Sequence[float]:
        """One more committed token, with its grade for a model; returns the losses that are now known."""

    def cut(self, played: Sequence[float], accepted: int) -> Sequence[float]:
        """A round of the played drafter has ended: what can be scored of it without waiting."""

    def finish(self) -> Sequence[float]:
        """The text has ended of itself: what waited for more of it is known now."""


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
        """A lookup drafts where its own last round has ended."""
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
        """The loss of the oldest window when its span is full."""
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
        """All open windows: the terms after the end of the text are 0."""
        losses = [self._loss(one) for one in self._open]
        self._open.clear()
        return losses

    def _loss(self, one: _Window) -> float:
        length = min(self._arm.length, self._span)
        return self._scale(window(one.grades, length, form=self._form, stops=self._stops))

    def _scale(self, chunk: float) -> float:
        # A window of one token asks only whether it is accepted: HedgeSpec's acceptance loss, 1 - gamma.
        return 2.0 - chunk if self._span == 1 else 1.0 - chunk / (self._span + 1)

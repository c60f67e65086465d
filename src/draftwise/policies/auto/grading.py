"""How `auto` learns about drafters that do not play, within a share of the total time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...core.arms import Arm
from ...core.outcomes import Grade, Window
from ...core.roles import GradeJob, Graders, RoundRecord
from .drafting import Line
from .observed import GradingPass
from .texts import Held, Notes

SHARE = 0.005  # of the total time, for lookups that do not play, and as much for models
ENOUGH = 24  # tokens of a batch, after which a model is graded on them; a new one is on the first
PART = 0.25  # of a round: the most that a further grading of a new model takes
FEW = 4  # tokens: the least that it is for
FIRST = 0.02  # of the total time, for the first gradings, where they take longer than a round
RARELY = 8  # a model that cannot pay at its present price is graded in one turn out of so many


class Asked(Protocol):
    """What the recorder asks of the policy; it writes nothing to it."""

    @property
    def drafters(self) -> tuple[str, ...]: ...

    def tests(self, i: int) -> float:
        """How many tokens of this drafter were tested recently."""
        ...

    def may_pay(self, i: int, batch: int) -> bool:
        """Whether one token of this drafter can be worth its cost, for all that is known."""
        ...


@dataclass(slots=True)
class Budget:
    """The share of the `total` measured time that may be spent on lookups that do not play, or on models."""

    share: float = SHARE
    total: float = 0.0
    rounds: int = 0

    @property
    def round(self) -> float:
        """Seconds of a round."""
        return self.total / max(1, self.rounds)

    def add(self, seconds: float, rounds: int) -> None:
        """Count the last of these rounds, which took so long, and those before, which were left out."""
        self.total += rounds * seconds
        self.rounds += rounds

    def allows(self, spent: float) -> bool:
        """Whether there is time left after so many seconds."""
        return spent <= self.share * self.total


@dataclass(slots=True)
class LookupGuesses:
    """Asks a lookup that does not play for its draft, in every round in which it has a match.

    A lookup's draft takes microseconds; all of them together have taken `seconds`.
    """

    seconds: float = 0.0

    def guess(
        self, i: int, context: int, seen: RoundRecord, start: int, graders: Graders, arm: Arm, budget: Budget
    ) -> Held | None:
        """The draft that this lookup would have made where the round began."""
        if arm.drafter in seen.request.disabled or not budget.allows(self.seconds):
            return None
        before = graders.graded_seconds
        draft = graders.guess(arm.drafter, seen.request, start, arm)
        self.seconds += graders.graded_seconds - before
        return None if draft is None else Held(i, context, draft, arm.length, seen.request.tokens[start - 1])


@dataclass(slots=True)
class ModelGrading:
    """Grades models that do not play: one at a time, in one pass over what it has not read.

    The model that has waited longest is next. A model of which nothing is known is graded at once, on the
    first tokens: it cannot play before. This may go beyond the budget, if enough was written to pay for it.
    For a single text it is no part of the budget: the model may read a long prompt, which would use up what
    the next texts need. In a batch those texts are graded that take the least to read, and a model is new up
    to `ENOUGH` tested tokens, since it must read all texts to draft for them. All gradings that are part of
    the budget have taken `seconds`.
    """

    waits: dict[int, int] = field(default_factory=dict)
    new: set[int] | None = None  # models of which nothing, or in a batch little, is known
    turns: int = 0
    cost: Line = field(default_factory=Line)  # seconds of all gradings, by the tokens that they read
    first: float = 0.0  # seconds of first gradings
    seconds: float = 0.0

    def grade(
        self,
        batch: Sequence[tuple[RoundRecord, Notes]],
        models: Sequence[int],
        longest: int,
        policy: Asked,
        graders: Graders,
        budget: Budget,
    ) -> GradingPass | None:
        """The grading pass of this round, if any."""
        if self.new is None or self.new:  # what is known of a model stays known
            enough = ENOUGH if len(batch) > 1 else 1
            self.new = {i for i in models if policy.tests(i) < enough}
        i = self._due(batch, models, policy, budget)
        if i is None:
            return None
        name, unread, picked = policy.drafters[i], 0, self._picked(i, batch, policy.drafters[i], budget)
        jobs = []
        for at in picked:
            seen, notes = batch[at]
            start, length = notes.first_ungraded(i), len(seen.request.tokens)
            probs = notes.probs[start - notes.start :] or [1.0] * (length - start)
            jobs.append(GradeJob(seen.request, start, probs, signals=frozenset({"chosen"})))
            unread += notes.unread(i)
        before = graders.graded_seconds
        grades = graders.grade(name, jobs)
        seconds = graders.graded_seconds - before
        self.cost.add(unread, seconds)
        if self._is_new(i):
            self.first += seconds
        if not self._is_new(i) or len(batch) > 1:
            self.seconds += seconds
        if grades is None:
            return None
        chances, windows = [], {}
        for at, job, found in zip(picked, jobs, grades, strict=True):
            notes, length = batch[at][1], len(job.request.tokens)
            notes.read[i], notes.graded[i], notes.missed[i] = length - 1, length, 0
            notes.plain[i] = 0
            chances += [(grade.signals.chosen, grade.accept) for grade in found if grade.signals]
            windows[at] = windows_of(i, job.start, found, notes, longest, job.request.tokens)
        return GradingPass(i, unread, seconds, chances, windows, len(batch))

    def ready(self, i: int, name: str, seen: RoundRecord, notes: Notes, batch: int) -> bool:
        """Whether enough of this text waits for this model to be graded on."""
        unknown = notes.missed.get(i, 0)
        enough = 1 if self._is_new(i) else ENOUGH
        return (unknown * batch >= enough or (seen.request.done and unknown > 0)) and (
            name not in seen.request.disabled
        )

    def _is_new(self, i: int) -> bool:
        return self.new is not None and i in self.new

    def _due(
        self,
        batch: Sequence[tuple[RoundRecord, Notes]],
        models: Sequence[int],
        policy: Asked,
        budget: Budget,
    ) -> int | None:
        """The model to grade now, if any is ready and the budget allows it."""
        n, names = len(batch), policy.drafters
        self.turns += 1
        spent = not budget.allows(self.seconds)
        if spent and not self.new:  # the usual case
            return None
        ready = [i for i in models if any(self.ready(i, names[i], *one, n) for one in batch)]
        if spent:
            ready = [i for i in ready if self._is_new(i) and self._pays(i, batch, policy, budget)]
        if spent or self.turns % RARELY:
            ready = [i for i in ready if policy.may_pay(i, n)]
        if not ready:
            return None
        first = max(ready, key=lambda i: self.waits.get(i, 0))
        for i in models:
            self.waits[i] = self.waits.get(i, 0) + 1
        self.waits[first] = 0
        return first

    def _pays(
        self, i: int, batch: Sequence[tuple[RoundRecord, Notes]], policy: Asked, budget: Budget
    ) -> bool:
        """Whether a grading of a new model is brief, or the first one takes little of the total time.

        The first may take a round; a further one a part of a round, for a few tokens at least.
        """
        waiting = [one for one in batch if self.ready(i, policy.drafters[i], *one, len(batch))]
        more = self.cost(min(notes.unread(i) for _, notes in waiting))
        if policy.tests(i) <= 0.0:
            return more <= budget.round or self.first + more <= FIRST * budget.total
        tokens = sum(batch[at][1].missed[i] for at in self._picked(i, batch, policy.drafters[i], budget))
        return tokens >= FEW and more <= PART * budget.round

    def _picked(
        self, i: int, batch: Sequence[tuple[RoundRecord, Notes]], name: str, budget: Budget
    ) -> list[int]:
        """The requests to grade on, those with the least to read first, until there are enough tokens.

        Or until reading takes as long as a round; the first grading of all, which measures that, has one.
        """
        picked, tokens, unread = list[int](), 0, 0
        for at in sorted(range(len(batch)), key=lambda at: batch[at][1].unread(i)):
            seen, notes = batch[at]
            if not self.ready(i, name, seen, notes, len(batch)):
                continue
            unread += notes.unread(i)
            if picked and (not self.cost.readings or self.cost(unread) > budget.round):
                break
            picked.append(at)
            tokens += notes.missed[i]
            if tokens >= ENOUGH:
                break
        return picked


def windows_of(
    i: int, start: int, grades: Sequence[Grade], notes: Notes, longest: int, text: Sequence[int]
) -> list[Window]:
    """One window for each round in which it did not draft, of those that began at `start` or later."""
    made = []
    for at, contexts, player in notes.rounds:
        if at >= start and player != i:
            accepts = []
            for place, grade in enumerate(grades[at - start : at - start + longest]):
                accepts.append(grade.at(place)[0])
                if accepts[-1] <= 0.0:
                    break
            made.append(Window(i, contexts[i], tuple(accepts), text[at - 1]))
    return made

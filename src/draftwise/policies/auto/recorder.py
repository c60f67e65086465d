"""What every committed text says of all drafters, for as little time as it may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.arms import Arm
from ...core.outcomes import Feedback, Grade, Window
from ...core.request import Request
from ...core.roles import GradeJob, Graders, Seen
from .policy import AutoPolicy

SHARE = 0.005  # of all time, that may go into drafters that do not play
ENOUGH = 24  # tokens of a batch that wait before a model is graded on them
FIRST = 0.02  # of the time so far, that may go into first looks that take longer than a round
RARELY = 8  # a model that cannot pay at its present price is graded in one turn of so many


@dataclass(slots=True)
class Held:
    """A lookup's draft that is held against the text: at most `asked` tokens, of which `right` came true."""

    drafter: int
    context: int
    tokens: tuple[int, ...]
    asked: int
    right: int = 0

    def follow(self, text: Sequence[int]) -> Window | None:
        """Go on along the text; what the draft was worth once it is settled."""
        for token in text:
            if self.right == len(self.tokens):
                break
            if self.tokens[self.right] != token:
                return self.window(missed=True)
            self.right += 1
        if self.right == len(self.tokens):
            return self.window(missed=self.right < self.asked)  # it had no more to offer
        return None

    def window(self, *, missed: bool) -> Window:
        """As far as it is known."""
        return Window(self.drafter, self.context, (1.0,) * self.right + ((0.0,) if missed else ()))


@dataclass(slots=True)
class Notes:
    """What is under way in one text: drafts that are held, where rounds began and in which context, the
    target's probabilities of the tokens from `start` on (sampling only), and how far each model is known."""

    start: int
    held: list[Held] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)

    def unknown(self, i: int) -> int:
        """The first token that this model has not been held against."""
        return max(self.known.get(i, 0), self.start)


@dataclass(slots=True)
class Watch:
    """Holds the drafts of lookups against the text in every round, and grades models now and then.

    A lookup's draft costs microseconds: each that has a match drafts where the round began, and is followed
    until it is wrong. A model that plays is known from its own drafts. One that does not is graded in one
    pass over what it has not read, the one that has waited longest first. All this takes at most `share` of
    the time that was measured, and one pass for each model of which nothing is known yet, once enough was
    written to pay for it; so useless drafters cost little more than that, however many there are.
    """

    policy: AutoPolicy
    share: float = SHARE
    reads: frozenset[str] = frozenset()
    texts: dict[int, Notes] = field(default_factory=dict)
    total: float = 0.0
    waits: list[int] = field(default_factory=list)
    models: list[int] = field(default_factory=list)
    lookups: list[int] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)
    arms: list[Arm] = field(default_factory=list)
    turns: int = 0
    looked: tuple[int, float] = (0, 0.0)
    met: bool = False

    def __post_init__(self) -> None:
        self.arms = [Arm(name, self.longest) for name in self.policy.drafters]
        self.waits = [0] * len(self.policy.drafters)
        self.number = {name: i for i, name in enumerate(self.policy.drafters)}

    def add(self, batch: Sequence[Seen], graders: Graders) -> Sequence[Feedback]:
        """The played arms' outcomes, and windows of every draft that is settled."""
        if not self.met:
            self.met = True
            self.policy.looks_up = tuple(not graders.grades_itself(name) for name in self.policy.drafters)
            self.models = [i for i, up in enumerate(self.policy.looks_up) if not up]
            self.lookups = [i for i, up in enumerate(self.policy.looks_up) if up]
        self.total += sum(seen.outcome.seconds for seen in batch if seen.outcome.spent)
        self._price(batch)
        found = [self._follow(seen, graders) for seen in batch]
        for i in self._due(batch, graders):
            self._grade(i, batch, graders, found)
        return [
            Feedback(s.request.id, s.decision, () if s.outcome.censored else (s.outcome,), windows=tuple(w))
            for s, w in zip(batch, found, strict=True)
        ]

    def close(self, request: Request) -> Sequence[Feedback]:
        """Forget a text."""
        self.texts.pop(request.id, None)
        return ()

    def _price(self, batch: Sequence[Seen]) -> None:
        """What each call of a drafter cost, and for whom it was."""
        policy = self.policy
        calls: dict[str, list[Seen]] = {}
        for seen in batch:
            arm = policy.arms[seen.outcome.arm]
            if arm.length and seen.outcome.spent:
                calls.setdefault(arm.drafter, []).append(seen)
        for name, mine in calls.items():
            i, pending = self.number[name], 0
            for seen in mine if not policy.looks_up[i] else ():
                read = policy.places[seen.request.id].read[i]
                pending += len(seen.request.tokens) - len(seen.tokens) - read
            seconds = sum(s.outcome.spent.draft for s in mine if s.outcome.spent) / policy.load.factor
            longest = max(seen.outcome.drafted for seen in mine)
            for seen in mine:
                policy.drafting[i].shaped(seen.outcome.drafted, policy.arms[seen.outcome.arm].length)
            policy.drafting[i].drafted(longest, pending, seconds, mates=len(mine), batch=len(batch))

    @property
    def longest(self) -> int:
        """Tokens that the longest draft has."""
        return self.policy.lengths[-1]

    def _broke(self, graders: Graders) -> bool:
        """Whether the time for drafters that do not play is used up for now."""
        return graders.graded_seconds > self.share * self.total

    # -- lookups, and the model that played -------------------------------------------------------------

    def _follow(self, seen: Seen, graders: Graders) -> list[Window]:
        policy, request = self.policy, seen.request
        start = len(request.tokens) - len(seen.tokens)
        place, notes = policy.places[request.id], self.texts.setdefault(request.id, Notes(start))
        place.written = request.position
        settled: list[Window] = []
        arm, player = policy.arms[seen.decision.arm], -1
        if arm.length:
            player = self.number[arm.drafter]
            self._played(player, start, seen, notes, settled)
        for i in self.lookups:
            if i != player and place.contexts[i] and not self._broke(graders):
                self._guess(i, place.contexts[i], seen, start, graders, notes)
        notes.rounds.append((start, place.best))
        if self.models and not request.sampling.greedy:
            notes.probs += [seen.scores.chance(n, t) for n, t in zip(seen.nodes, seen.tokens, strict=True)]
        still = []
        for held in notes.held:
            window = held.follow(seen.tokens)
            if window is None and request.done:
                window = held.window(missed=False)
            if window is None:
                still.append(held)
            else:
                settled.append(window)
        notes.held = still
        return settled

    def _played(self, i: int, start: int, seen: Seen, notes: Notes, settled: list[Window]) -> None:
        policy, outcome = self.policy, seen.outcome
        place = policy.places[seen.request.id]
        if outcome.censored:
            return
        asked = policy.arms[seen.decision.arm].length
        if policy.looks_up[i]:
            notes.held.append(Held(i, place.contexts[i], seen.draft.tokens, asked))
        else:
            place.read[i] = start
            notes.known[i] = len(seen.request.tokens)
            missed = outcome.accepted < min(outcome.drafted, asked)  # a tree has more nodes than depths
            accepts = (1.0,) * outcome.accepted + ((0.0,) if missed else ())
            settled.append(Window(i, place.contexts[i], accepts))

    def _guess(self, i: int, context: int, seen: Seen, start: int, graders: Graders, notes: Notes) -> None:
        """What this lookup would have drafted where the round began."""
        name = self.policy.drafters[i]
        if name not in seen.request.out:
            draft = graders.guess(name, seen.request, start, self.arms[i])
            if draft is not None:
                notes.held.append(Held(i, context, draft, self.longest))

    # -- models that did not play -----------------------------------------------------------------------

    def _due(self, batch: Sequence[Seen], graders: Graders) -> list[int]:
        """The model to grade now, if any: the one that has waited longest, while there is time for it.

        For one of which nothing is known yet, there is as soon as enough has been written.
        """
        policy = self.policy
        ready = [i for i in self.models if any(self._ready(i, seen, len(batch)) for seen in batch)]
        self.turns += 1
        if self._broke(graders):
            ready = [i for i in ready if not policy.skills[i].seen and self._first_look(i, batch)]
        elif self.turns % RARELY:
            ready = [i for i in ready if policy.may_pay(i, len(batch))]
        if not ready:
            return []
        first = max(ready, key=lambda i: self.waits[i])
        for i in self.models:
            self.waits[i] += 1
        self.waits[first] = 0
        return [first]

    def _first_look(self, i: int, batch: Sequence[Seen]) -> bool:
        """Whether a text may be read for a model that has never been looked at: a long prompt waits."""
        tokens, seconds = self.looked
        ready = (seen for seen in batch if self._ready(i, seen, len(batch)))
        more = seconds / max(1, tokens) * min(self._unread(i, seen) for seen in ready)
        return more <= self.total / self.turns or seconds + more <= FIRST * self.total

    def _ready(self, i: int, seen: Seen, batch: int) -> bool:
        unknown = len(seen.request.tokens) - self.texts[seen.request.id].unknown(i)
        return (unknown * batch >= ENOUGH or (seen.request.done and unknown > 0)) and (
            self.policy.drafters[i] not in seen.request.out
        )

    def _grade(self, i: int, batch: Sequence[Seen], graders: Graders, found: Sequence[list[Window]]) -> None:
        policy, name = self.policy, self.policy.drafters[i]
        jobs, mine, tokens, graded = [], [], 0, 0
        for seen, windows in sorted(
            zip(batch, found, strict=True), key=lambda pair: self._unread(i, pair[0])
        ):
            if not self._ready(i, seen, len(batch)):
                continue
            notes, length = self.texts[seen.request.id], len(seen.request.tokens)
            start = notes.unknown(i)
            probs = notes.probs[start - notes.start :] or [1.0] * (length - start)
            jobs.append(GradeJob(seen.request, start, probs, signals=frozenset({"chosen"})))
            mine.append((seen, windows))
            tokens += self._unread(i, seen)
            graded += length - start
            if graded >= ENOUGH:
                break
        before = graders.graded_seconds
        grades = graders.grade(name, jobs)
        if not policy.skills[i].seen:
            self.looked = self.looked[0] + tokens, self.looked[1] + graders.graded_seconds - before
        if grades is None:
            return
        policy.drafting[i].read(tokens, (graders.graded_seconds - before) / policy.load.factor)
        for (seen, windows), job, known in zip(mine, jobs, grades, strict=True):
            policy.places[seen.request.id].read[i] = len(seen.request.tokens) - 1
            self.texts[seen.request.id].known[i] = len(seen.request.tokens)
            for grade in known:
                if grade.signals:
                    policy.calibrations[i].learn(grade.signals.chosen, grade.accept)
            windows += self._windows(i, job.start, known, self.texts[seen.request.id])

    def _unread(self, i: int, seen: Seen) -> int:
        return len(seen.request.tokens) - self.policy.places[seen.request.id].read[i]

    def _windows(self, i: int, start: int, known: Sequence[Grade], notes: Notes) -> list[Window]:
        """One window for each round that began on the graded tokens."""
        made = []
        for at, context in notes.rounds:
            if at >= start:
                accepts = []
                for place, grade in enumerate(known[at - start : at - start + self.longest]):
                    accepts.append(grade.at(place)[0])
                    if accepts[-1] <= 0.0:
                        break
                made.append(Window(i, context, tuple(accepts)))
        return made

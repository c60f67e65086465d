"""How `auto` learns about drafters that do not play, within a share of the total time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...core.arms import Arm
from ...core.outcomes import Grade, Window
from ...core.roles import GradeJob, Graders, RoundRecord
from .costs import Line
from .state import AutoState

SHARE = 0.005  # of the total time, for lookups that do not play, and as much for models
ENOUGH = 24  # tokens of a batch, after which a model is graded on them; a new one is on the first
ROUND_PART = 0.25  # of a round: the most that a further grading of a new model takes
FEWEST = 4  # tokens: the least that it is for
FIRST_SHARE = 0.02  # of the total time, for the first gradings, where they take longer than a round
RARE_TURN = 8  # a model that cannot pay at its present price is graded in one turn out of so many


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
        """Return whether there is time left after so many seconds."""
        return spent <= self.share * self.total


@dataclass(slots=True)
class LookupGuesses:
    """Asks a lookup that does not play for its draft, in every round in which it has a match.

    A lookup's draft takes microseconds; all of them together have taken `seconds`.
    """

    seconds: float = 0.0

    def guess(
        self, i: int, context: int, seen: RoundRecord, start: int, graders: Graders, arm: Arm, budget: Budget
    ) -> PendingDraft | None:
        """Return the draft that this lookup would have made where the round began."""
        if arm.drafter in seen.request.disabled or not budget.allows(self.seconds):
            return None
        before = graders.graded_seconds
        draft = graders.guess(arm.drafter, seen.request, start, arm)
        self.seconds += graders.graded_seconds - before
        return (
            None
            if draft is None
            else PendingDraft(i, context, draft, arm.length, seen.request.tokens[start - 1])
        )


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
        batch: Sequence[tuple[RoundRecord, GradingState]],
        models: Sequence[int],
        longest: int,
        policy: AutoState,
        graders: Graders,
        budget: Budget,
    ) -> GradingPass | None:
        """Return the grading pass of this round, if any."""
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

    def ready(self, i: int, name: str, seen: RoundRecord, notes: GradingState, batch: int) -> bool:
        """Return whether enough of this text waits for this model to be graded on."""
        unknown = notes.missed.get(i, 0)
        enough = 1 if self._is_new(i) else ENOUGH
        return (unknown * batch >= enough or (seen.request.done and unknown > 0)) and (
            name not in seen.request.disabled
        )

    def _is_new(self, i: int) -> bool:
        return self.new is not None and i in self.new

    def _due(
        self,
        batch: Sequence[tuple[RoundRecord, GradingState]],
        models: Sequence[int],
        policy: AutoState,
        budget: Budget,
    ) -> int | None:
        """Return the model to grade now, if any is ready and the budget allows it."""
        n, names = len(batch), policy.drafters
        self.turns += 1
        spent = not budget.allows(self.seconds)
        if spent and not self.new:  # the usual case
            return None
        ready = [i for i in models if any(self.ready(i, names[i], *one, n) for one in batch)]
        if spent:
            ready = [i for i in ready if self._is_new(i) and self._pays(i, batch, policy, budget)]
        if spent or self.turns % RARE_TURN:
            ready = [i for i in ready if policy.may_pay(i, n)]
        if not ready:
            return None
        first = max(ready, key=lambda i: self.waits.get(i, 0))
        for i in models:
            self.waits[i] = self.waits.get(i, 0) + 1
        self.waits[first] = 0
        return first

    def _pays(
        self, i: int, batch: Sequence[tuple[RoundRecord, GradingState]], policy: AutoState, budget: Budget
    ) -> bool:
        """Return whether a grading of a new model is brief, or the first one takes little of the total time.

        The first may take a round; a further one a part of a round, for a few tokens at least.
        """
        waiting = [one for one in batch if self.ready(i, policy.drafters[i], *one, len(batch))]
        more = self.cost(min(notes.unread(i) for _, notes in waiting))
        if policy.tests(i) <= 0.0:
            return more <= budget.round or self.first + more <= FIRST_SHARE * budget.total
        tokens = sum(batch[at][1].missed[i] for at in self._picked(i, batch, policy.drafters[i], budget))
        return tokens >= FEWEST and more <= ROUND_PART * budget.round

    def _picked(
        self, i: int, batch: Sequence[tuple[RoundRecord, GradingState]], name: str, budget: Budget
    ) -> list[int]:
        """Return the requests to grade on, those with the least to read first, until there are enough tokens.

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
    i: int, start: int, grades: Sequence[Grade], notes: GradingState, longest: int, text: Sequence[int]
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


@dataclass(slots=True)
class PendingDraft:
    """A lookup's draft that is compared with the text as it is written.

    The draft began after `token` and had at most `asked` tokens, of which the first `right` are those of the
    text so far.
    """

    drafter: int
    context: int
    tokens: tuple[int, ...]
    asked: int
    token: int = -1
    right: int = 0

    def follow(self, text: Sequence[int]) -> Window | None:
        """Compare with the next tokens of the text; the result, once all of the draft is decided."""
        for token in text:
            if self.right == len(self.tokens):
                break
            if self.tokens[self.right] != token:
                return self.window(missed=True)
            self.right += 1
        if self.right == len(self.tokens):
            return self.window(missed=self.right < self.asked)  # it had no more tokens to offer
        return None

    def window(self, *, missed: bool) -> Window:
        """Return the result as far as it is known."""
        accepts = (1.0,) * self.right + ((0.0,) if missed else ())
        return Window(self.drafter, self.context, accepts, self.token)


@dataclass(slots=True)
class GradingState:
    """The state of one text.

    Attributes:
        start: the length of the text when it was first seen, or after the last rounds left out.
        at: the length of the text when this round began.
        end: its length after the round.
        held: drafts of lookups that are not decided yet.
        rounds: where rounds began, the contexts of all drafters there, and the one that drafted (-1: none).
        probs: the target's probabilities of the tokens from `start` on (with sampling only).
        graded: by model, the tokens of the text up to which it is known.
        missed: by model, the tokens after these from rounds in which it did not draft, as far as they count.
        plain: by model, those of them from rounds without a draft: they count even once it drafts again.
        read: by model, the tokens of the text that it has read.
        skipped: results of drafts that were decided in rounds that were left out.
        left_out: how many rounds were left out before this one; each wrote one token.
    """

    start: int
    at: int = 0
    end: int = 0
    held: list[PendingDraft] = field(default_factory=list)
    rounds: list[tuple[int, Sequence[int], int]] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    graded: dict[int, int] = field(default_factory=dict)
    missed: dict[int, int] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    skipped: list[Window] = field(default_factory=list)
    left_out: int = 0

    def first_ungraded(self, i: int) -> int:
        """Return the first token on which this model was not tested."""
        return max(self.graded.get(i, 0), self.start)

    def add(self, models: Sequence[int], player: int, new: int, contexts: Sequence[int]) -> None:
        """A round of `new` tokens in which `player` drafted; the other models wait to be graded on it."""
        self.rounds.append((self.at, contexts, player))
        for i in models:
            if i != player:
                self.missed[i] = self.missed.get(i, 0) + new
                if player < 0:
                    self.plain[i] = self.plain.get(i, 0) + new
            elif plain := self.plain.get(i, 0):
                self.missed[i] = plain
            else:
                self.graded[i], self.missed[i] = self.end, 0

    def pending(self, i: int, tokens: int) -> int:
        """Return how many of the first `tokens` tokens this model has not read."""
        return tokens - self.read.get(i, 0)

    def unread(self, i: int) -> int:
        """How many tokens this model reads to be graded; some of them again, if it has drafted since."""
        return self.end - min(self.read.get(i, 0), self.first_ungraded(i))

    def skip(self, new: Sequence[int], start: int) -> None:
        """Tokens of rounds that were left out: drafts are compared with them, and no model is graded."""
        self.left_out = len(new)
        if not new:
            return
        self.skipped = self.settle(new, done=False)
        self.start, self.rounds, self.probs, self.missed = start, [], [], {}
        self.plain = {}

    def settle(self, new: Sequence[int], *, done: bool) -> list[Window]:
        """Compare the drafts that are held with new tokens; the results of those that are decided."""
        settled, still = self.skipped, list[PendingDraft]()
        self.skipped = []
        for held in self.held:
            window = held.follow(new)
            if window is None and done:
                window = held.window(missed=False)
            if window is None:
                still.append(held)
            else:
                settled.append(window)
        self.held = still
        return settled


@dataclass(slots=True)
class DraftCall:
    """One call of a drafter for some requests of a batch.

    `longest` is the tokens of its longest draft, `pending` the tokens of the texts that it had to read first,
    `drafts` the tokens of each draft and the length that was asked for. Seconds are wall-clock time;
    `kind` is how the passes that took them were run.
    """

    drafter: int
    batch: int
    longest: int = 0
    pending: int = 0
    seconds: float = 0.0
    kind: str = ""
    drafts: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class GradingPass:
    """One pass in which a drafter graded committed tokens: the tokens that it read, and its seconds, in a
    round of so many requests (`batch`).

    `chances` has, for each graded token with signals, the probability that the drafter gave it and the
    probability that it is accepted; `windows` has the results by the request's place in the batch.
    """

    drafter: int
    tokens: int
    seconds: float
    chances: Sequence[tuple[float, float]]
    windows: Mapping[int, list[Window]]
    batch: int = 1


@dataclass(slots=True)
class Observed:
    """What was seen in one round of one request, beside its outcome and windows.

    `written` is the tokens of the answer so far, `read` how many tokens of the text each model has read.
    `calls` and `grading` concern the whole batch and come with its first request alone. `looks_up`, in the
    first round of all, says which drafters are known by their drafts alone (lookups).
    """

    written: int
    read: Mapping[int, int]
    calls: Sequence[DraftCall] | None = None
    grading: GradingPass | None = None
    looks_up: tuple[bool, ...] = ()

"""The recorder of `auto`: what every committed text shows about all drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import isfinite

from ...core.arms import Arm
from ...core.outcomes import Feedback, Outcome, Window
from ...core.request import Request
from ...core.roles import Graders, RoundRecord
from .candidates import TAKEN, match_length, windows
from .grading import (
    Budget,
    DraftCall,
    GradingState,
    LookupGuesses,
    ModelGrading,
    Observed,
    PendingDraft,
)
from .state import AutoState


@dataclass(slots=True)
class AutoRecorder:
    """Compares the drafts of lookups with the text in every round, and grades models now and then.

    A drafter that plays is known from its own drafts. What the others would have drafted is asked of lookups
    by `lookups` and of models by `models`; None leaves that part out. Each takes at most the share of time
    that `budget` allows, and models one pass more for each of which nothing is known yet. So drafters that
    are never right cost little, however many they are. Everything that was seen goes to the policy in
    `Feedback.observed`.
    """

    policy: AutoState
    _: KW_ONLY
    budget: Budget = field(default_factory=Budget)
    lookups: LookupGuesses | None = field(default_factory=LookupGuesses)
    models: ModelGrading | None = field(default_factory=ModelGrading)
    notes: Callable[[int], GradingState] = GradingState
    reads: frozenset[str] = frozenset()
    texts: dict[int, GradingState] = field(default_factory=dict)
    looks_up: tuple[bool, ...] = ()
    guessed: list[int] = field(default_factory=list)
    graded: list[int] = field(default_factory=list)
    number: dict[str, int] = field(init=False)
    arms: list[Arm] = field(init=False)
    longest: int = field(init=False)

    def __post_init__(self) -> None:
        names = self.policy.drafters
        self.longest = max((arm.length for arm in self.policy.arms), default=0)
        self.number = {name: i for i, name in enumerate(names)}
        self.arms = [Arm(name, self.longest) for name in names]

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        """Return the outcomes of the arms that played, and windows of every draft that is decided."""
        met = not self.looks_up
        if met:
            self._meet(graders)
        pairs = [(seen, self._notes(seen)) for seen in batch]
        if isfinite(seconds := sum(seen.outcome.seconds for seen in batch)):
            self.budget.add(seconds, 1 + max(notes.left_out for _, notes in pairs))
        calls = self._calls(pairs) if self.policy.timed else []
        windows = [self._follow(seen, notes, graders) for seen, notes in pairs]
        graded = None
        if self.graded and self.models:
            graded = self.models.grade(pairs, self.graded, self.longest, self.policy, graders, self.budget)
        if graded:
            for at, more in graded.windows.items():
                windows[at] += more
        observed = [Observed(seen.request.position, dict(notes.read)) for seen, notes in pairs]
        observed[0].calls, observed[0].grading = calls, graded
        if met:
            observed[0].looks_up = self.looks_up
        return [
            Feedback(
                seen.request.id,
                seen.decision,
                () if seen.outcome.censored else (seen.outcome,),
                (),
                tuple(mine),
                its,
            )
            for seen, mine, its in zip(batch, windows, observed, strict=True)
        ]

    def close(self, request: Request) -> Sequence[Feedback]:
        """Forget a text."""
        self.texts.pop(request.id, None)
        return ()

    def _meet(self, graders: Graders) -> None:
        """Find out which drafters are lookups, to be asked for drafts, and which are models, to be graded."""
        cascades = self.policy.cascades
        self.looks_up = tuple(
            i not in cascades and not graders.grades_itself(name)
            for i, name in enumerate(self.policy.drafters)
        )
        self.guessed = [i for i, up in enumerate(self.looks_up) if up]
        self.graded = [i for i, up in enumerate(self.looks_up) if not up and i not in cascades]

    def _notes(self, seen: RoundRecord) -> GradingState:
        """Return the state of this text, at the round that was just played."""
        start = len(seen.request.tokens) - len(seen.tokens)
        notes = self.texts.get(seen.request.id)
        if notes is None:
            notes = self.texts[seen.request.id] = self.notes(start)
        else:
            notes.skip(seen.request.tokens[notes.end : start], start)
        notes.at, notes.end = start, len(seen.request.tokens)
        return notes

    def _calls(self, batch: Sequence[tuple[RoundRecord, GradingState]]) -> list[DraftCall]:
        """Return what each call of a drafter cost, and for which requests it was."""
        calls: dict[int, DraftCall] = {}
        for seen, notes in batch:
            outcome = seen.outcome
            arm, spent = self.policy.arms[outcome.arm], outcome.cost
            if arm.length and spent:
                i, drafted, asked = self.number[arm.drafter], outcome.drafted, outcome.asked or 1
                if i in self.policy.cascades:  # what its second part adds takes no time
                    i, drafted = self.policy.cascades[i], outcome.prefix_length
                    asked = drafted or 1
                call = calls.get(i)
                if call is None:
                    call = calls[i] = DraftCall(i, len(batch))
                call.longest = max(call.longest, drafted)
                call.pending += 0 if self.looks_up[i] else notes.pending(i, notes.at)
                call.seconds += spent.draft
                call.kind = spent.drafter_kind
                call.drafts.append((drafted, asked))
        return list(calls.values())

    def _follow(self, seen: RoundRecord, notes: GradingState, graders: Graders) -> list[Window]:
        """Return the drafts that this round's tokens decide."""
        request, contexts = seen.request, self.policy.contexts(seen.request.id)
        arm, player = self.policy.arms[seen.decision.arm], -1
        played: list[Window] = []
        if arm.length:
            player = self.number[arm.drafter]
            played = self._played(player, contexts[player], seen, notes)
        if self.lookups:
            for i in self.guessed:
                if i != player and contexts[i]:
                    arm, budget = self.arms[i], self.budget
                    draft = self.lookups.guess(i, contexts[i], seen, notes.at, graders, arm, budget)
                    if draft is not None:
                        notes.held.append(draft)
        notes.add(self.graded, self._model(player, seen.outcome), len(seen.tokens), contexts)
        if self.graded and not request.sampling.greedy:
            notes.probs += [seen.scores.chance(n, t) for n, t in zip(seen.nodes, seen.tokens, strict=True)]
        if notes.held or notes.skipped:
            played += notes.settle(seen.tokens, done=request.done)
        return played

    def _played(self, i: int, context: int, seen: RoundRecord, notes: GradingState) -> list[Window]:
        """The result of a model's draft; a lookup's is held, since the text may decide more of it later."""
        outcome = seen.outcome
        if _unplayed(outcome):
            return []
        if i in self.policy.cascades:
            return self._parts(i, seen, notes)
        token = seen.request.tokens[notes.at - 1]
        asked = _decided(seen) if outcome.censored else outcome.asked  # the room for it or the text ended
        if self.looks_up[i]:
            notes.held.append(PendingDraft(i, context, seen.draft.tokens, asked, token))
            return []
        notes.read[i] = notes.at
        missed = outcome.accepted < min(outcome.drafted, asked)  # a tree has more nodes than depths
        return [Window(i, context, (1.0,) * outcome.accepted + ((0.0,) if missed else ()), token)]

    def _model(self, player: int, outcome: Outcome) -> int:
        """Return the model whose own draft shows how far it is right in this round; -1: none."""
        first = self.policy.cascades.get(player)
        if _unplayed(outcome) or (first is not None and not outcome.prefix_length):
            return -1
        return player if first is None else first

    def _parts(self, i: int, seen: RoundRecord, notes: GradingState) -> list[Window]:
        """Return the results of both parts of a composite draft, and whether there was a second."""
        outcome, first = seen.outcome, self.policy.cascades[i]
        if not outcome.prefix_length:
            return []
        notes.read[first] = notes.at
        decided = _decided(seen) if outcome.censored else outcome.drafted
        begin, rest = windows(outcome.prefix_length, outcome.accepted, decided)
        kind = match_length(outcome.match)
        found = [
            Window(
                first,
                self.policy.contexts(seen.request.id)[first],
                begin,
                seen.request.tokens[notes.at - 1],
            ),
            Window(i, TAKEN, (float(kind > TAKEN),)),
        ]
        return [*found, Window(i, kind, rest)] if rest else found


def _unplayed(outcome: Outcome) -> bool:
    """Return whether the drafter that was chosen could not draft."""
    return outcome.censored and not outcome.drafted


def _decided(seen: RoundRecord) -> int:
    """How deep a draft went that the text decided: what comes after the end of the text was not rejected."""
    if len(seen.tokens) <= seen.outcome.accepted:
        return seen.outcome.accepted
    depths: list[int] = []
    for parent in seen.draft.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)

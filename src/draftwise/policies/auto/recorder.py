"""The recorder of `auto`: what every committed text shows about all drafters, and what it took."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import isfinite
from operator import itemgetter
from typing import TypeAlias

from ...core.arms import Arm
from ...core.drafts import Draft
from ...core.outcomes import Feedback, Grade, Window
from ...core.request import Request
from ...core.roles import GradeJob, Graders, RoundRecord
from .chances import match_length
from .drafts import TAKEN
from .policy import AutoPolicy, pass_kind
from .prices import ENOUGH, Call, Line, RoundCosts

SHARE = 0.005  # of the total time, for lookups that do not play, and as much for models


@dataclass(slots=True)
class PendingDraft:
    """A lookup's draft that is compared with the text as it is written: `right` tokens are the text's so far.

    It had at most `limit` tokens and began after `token`.
    """

    drafter: int
    context: int
    tokens: tuple[int, ...]
    limit: int
    token: int = -1
    right: int = 0

    def follow(self, text: Sequence[int], *, done: bool = False) -> Window | None:
        """Compare with the next tokens of the text; the result, once all of the draft is decided."""
        for token in text[: len(self.tokens) - self.right]:
            if self.tokens[self.right] != token:
                return self._window(missed=True)
            self.right += 1
        if self.right == len(self.tokens):
            return self._window(missed=self.right < self.limit)  # it had no more tokens to offer
        return self._window(missed=False) if done else None

    def _window(self, *, missed: bool) -> Window:
        accepts = (1.0,) * self.right + ((0.0,) if missed else ())
        return Window(self.drafter, self.context, accepts, self.token)


@dataclass(slots=True)
class GradingState:
    """What of one text is still to be graded.

    Attributes:
        start: the length of the text when it was first seen, or after the last rounds left out.
        at: the length of the text when this round began.
        end: its length after the round.
        pending: drafts of lookups that are not decided yet.
        rounds: where rounds began, the contexts of all drafters there, and the one that drafted (-1: none).
        probs: the target's probabilities of the tokens from `start` on (with sampling only).
        graded: by model, the tokens of the text up to which it was graded, or drafted itself.
        waiting: by model, the tokens after these from rounds in which it did not draft.
        windows: what is known after this round.
    """

    start: int
    at: int = 0
    end: int = 0
    pending: list[PendingDraft] = field(default_factory=list)
    rounds: list[tuple[int, Sequence[int], int]] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    graded: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)

    def begin(self, start: int, text: Sequence[int]) -> None:
        """Begin a round; tokens of rounds left out decide drafts, and no model is graded on them."""
        self.windows = []
        if self.end and start > self.end:
            self.windows = self.settle(text[self.end : start])
            self.start, self.rounds, self.probs, self.waiting = start, [], [], {}
        self.at, self.end = start, len(text)

    def settle(self, new: Sequence[int], *, done: bool = False) -> list[Window]:
        """Compare the drafts of lookups with new tokens; the results of those that are decided."""
        followed = [(draft, draft.follow(new, done=done)) for draft in self.pending]
        self.pending = [draft for draft, window in followed if window is None]
        return [window for _, window in followed if window is not None]

    def first_ungraded(self, i: int) -> int:
        """Return the first token on which this model was not graded."""
        return max(self.graded.get(i, 0), self.start)


Pairs: TypeAlias = Sequence[tuple[RoundRecord, GradingState]]


@dataclass(slots=True)
class AutoRecorder:
    """Compares the drafts of lookups with the text in every round, and grades models now and then.

    A drafter that plays is known from its own drafts. What the others would have drafted is asked of lookups
    in every round, and of models in one pass over what they have not read, one model at a time. Each takes at
    most a `share` of the time; a model of which nothing is known is graded on the first tokens, even where
    that takes longer, since it cannot play before. So drafters that are never right cost little, however many
    they are.
    """

    policy: AutoPolicy
    _: KW_ONLY
    share: float = SHARE
    reads: frozenset[str] = frozenset()
    texts: dict[int, GradingState] = field(default_factory=dict)
    lookups: list[int] = field(default_factory=list)
    models: list[int] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)  # the round in which a model was graded
    total: float = 0.0  # measured seconds
    rounds: int = 0
    guessing: float = 0.0  # seconds of lookups that do not play
    grading: float = 0.0  # of models that do not
    first: float = 0.0  # of first gradings
    cost: Line = field(default_factory=Line)  # seconds of a grading by the tokens that it reads

    def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
        """Return the outcomes of the arms that played, and windows of every draft that is decided."""
        pairs = self._begin(batch, graders)
        if (costs := self._costs(pairs)) is not None:
            self._spend(costs)
        return self._compare(pairs, graders)

    def ask(self, batch: Sequence[RoundRecord], graders: Graders) -> Callable[[], Sequence[Feedback]]:
        """Do all of `add` but the learning of what the round took, which takes the longest."""
        pairs = self._begin(batch, graders)
        costs, feedback = self._costs(pairs), self._compare(pairs, graders)

        def finish() -> Sequence[Feedback]:
            if costs is not None:
                self._spend(costs)
            return feedback

        return finish

    def close(self, request: Request) -> Sequence[Feedback]:
        self.texts.pop(request.id, None)
        return ()

    def _begin(self, batch: Sequence[RoundRecord], graders: Graders) -> Pairs:
        """Return the state of each text, with windows of drafts that rounds left out have decided."""
        if not self.rounds:
            self._meet(graders)
        self.rounds += 1
        pairs = [(seen, self.texts.setdefault(seen.request.id, GradingState(_start(seen)))) for seen in batch]
        for seen, state in pairs:
            state.begin(_start(seen), seen.request.tokens)
        return pairs

    def _compare(self, pairs: Pairs, graders: Graders) -> list[Feedback]:
        """Compare drafts with the text, and grade a model if one is due."""
        for seen, state in pairs:
            state.windows += self._follow(seen, state, graders)
        if self.models:
            self._grade(pairs, graders)
        feedback = []
        for seen, state in pairs:
            text = self.policy.texts[seen.request.id]
            request = seen.request
            text.written = request.position
            text.samples = not (request.sampling.greedy or request.deterministic)
            outcomes = () if seen.outcome.censored else (seen.outcome,)
            feedback.append(Feedback(request.id, seen.decision, outcomes, windows=tuple(state.windows)))
        return feedback

    def _meet(self, graders: Graders) -> None:
        """Find out which drafters are lookups, to be asked for drafts, and which are models, to be graded."""
        policy = self.policy
        others = [i for i in range(len(policy.drafters)) if i not in policy.cascades]
        self.models = [i for i in others if graders.grades_itself(policy.drafters[i])]
        self.lookups = [i for i in others if i not in self.models]
        policy.looks_up = tuple(i in self.lookups for i in range(len(policy.drafters)))
        wide = {i: policy.drafters[i] for i in self.models if i in policy.wide}
        policy.trees = frozenset(i for i, name in wide.items() if graders.drafts_trees(name))
        policy.beside = frozenset(i for i, name in wide.items() if graders.drafts_siblings(name))

    # -- seconds -------------------------------------------------------------------------------------

    def _costs(self, pairs: Pairs) -> RoundCosts | None:
        """Return what the round and each call of a drafter in it took; None if that is not known."""
        policy, has_tree, calls = self.policy, False, dict[tuple[int, int], Call]()
        for seen, state in pairs:
            outcome, cost = seen.outcome, seen.outcome.cost
            arm = policy.arms[outcome.arm]
            if arm.length and cost and (outcome.drafted or cost.draft):  # else there was no room for a draft
                i, drafted, depth = policy.owners[outcome.arm], outcome.drafted, _depth(seen.draft)
                has_tree |= depth < drafted
                if i in policy.cascades:  # what its second part adds takes no time
                    i, drafted = policy.cascades[i], outcome.prefix_length
                    depth = drafted
                else:
                    policy.drafter_kinds[i] = pass_kind(cost.drafter_kind)
                width = arm.width if i in policy.trees and not policy.texts[seen.request.id].samples else 1
                if arm.width > width:
                    drafted = depth  # siblings take no time
                call = calls.setdefault((i, width), Call(i, width))
                unread = 0 if i in self.lookups else state.at - self._read(seen, i)
                call.drafts.append((drafted, depth))
                call.seconds.append(cost.draft)
                call.unread += unread
        cost = pairs[0][0].outcome.cost
        if cost is None:
            return None
        rounds = {seen.request.id: (seen.outcome.seconds, len(seen.tokens)) for seen, _ in pairs}
        if isfinite(total := sum(seconds for seconds, _ in rounds.values())):
            self.total += total
        matched = frozenset(key for key in rounds if policy.texts[key].matched)
        return RoundCosts(cost, [*calls.values()], rounds, matched, has_tree, policy.trial)

    def _spend(self, costs: RoundCosts) -> None:
        policy, reading, n = self.policy, 0.0, len(costs.rounds)
        for call in costs.calls:
            price = policy.draft_price(call.drafter, call.width)
            for drafted, depth in call.drafts:
                if depth:
                    share = 0.1 if price.width > 1.0 and not price.trial else 1.0  # the first trees show it
                    price.width += share * (drafted / depth - price.width)
            count, deepest = len(call.drafts), max(depth for _, depth in call.drafts)
            if isfinite(seconds := sum(call.seconds)):
                reading += price.add(deepest, call.unread, seconds, n, count)
        policy.spent(costs, reading)

    # -- acceptance ----------------------------------------------------------------------------------

    def _follow(self, seen: RoundRecord, state: GradingState, graders: Graders) -> list[Window]:
        """Return the drafts that this round's tokens decide."""
        request, policy, outcome = seen.request, self.policy, seen.outcome
        contexts, arm = policy.texts[request.id].contexts, policy.arms[seen.decision.arm]
        windows, player, last = list[Window](), -1, request.tokens[state.at - 1]
        limit = _decided(seen) if outcome.censored else outcome.asked  # the room for it or the text ended
        played = arm.length and (outcome.drafted or not outcome.censored)  # else it could not draft
        if played:
            player = policy.owners[seen.decision.arm]
            if player in policy.cascades:
                windows = self._parts(player, seen, state)
                player = policy.cascades[player] if outcome.prefix_length else -1
            elif player in self.lookups and seen.draft.is_chain:
                state.pending.append(PendingDraft(player, contexts[player], seen.draft.tokens, limit, last))
            else:
                policy.texts[request.id].read[player] = state.at
                missed = outcome.accepted < min(_depth(seen.draft), limit)
                accepts = (1.0,) * outcome.accepted + ((0.0,) if missed else ())
                if arm.width > 1:
                    accepts = self._first_branch(player, seen)
                windows.append(Window(player, contexts[player], accepts, last))
        for i in self.lookups:
            if i != player and contexts[i] and self.guessing <= self.share * self.total:
                name, before = policy.drafters[i], graders.graded_seconds
                if name not in request.disabled:
                    draft = graders.guess(name, request, state.at, Arm(name, policy.lengths[-1]))
                    self.guessing += graders.graded_seconds - before
                    if draft is not None:
                        state.pending.append(PendingDraft(i, contexts[i], draft, policy.lengths[-1], last))
        if self.models:
            state.rounds.append((state.at, contexts, player))
            for i in self.models:
                if i != player:
                    state.waiting[i] = state.waiting.get(i, 0) + len(seen.tokens)
                elif not state.waiting.get(i):
                    state.graded[i] = state.end  # it is known by its draft, and need not read this again
            if not request.sampling.greedy:
                places = zip(seen.nodes, seen.tokens, strict=True)
                state.probs += [seen.scores.chance(node, token) for node, token in places]
        return windows + state.settle(seen.tokens, done=request.done)

    def _parts(self, i: int, seen: RoundRecord, state: GradingState) -> list[Window]:
        """Return the results of both parts of a composite draft, and whether there was a second."""
        outcome, first, text = seen.outcome, self.policy.cascades[i], self.policy.texts[seen.request.id]
        length, right = outcome.prefix_length, outcome.accepted
        if not length:
            return []
        text.read[first] = state.at
        decided = _decided(seen) if outcome.censored else outcome.drafted
        begin = (1.0,) * min(right, length) + ((0.0,) if right < min(length, decided) else ())
        match = match_length(outcome.match)
        windows = [
            Window(first, text.contexts[first], begin, seen.request.tokens[state.at - 1]),
            Window(i, TAKEN, (float(match > TAKEN),)),
        ]
        if right >= length:  # the second part is known once all of the first is right
            rest = (1.0,) * (right - length) + ((0.0,) if right < decided else ())
            windows += [Window(i, match, rest)] if rest else []
        return windows

    def _first_branch(self, i: int, seen: RoundRecord) -> tuple[float, ...]:
        """Return what a tree shows about the chain of its first nodes; learn what siblings caught.

        Of a tree all children of the accepted nodes are tested, the chain's first.
        """
        policy, draft, accepts = self.policy, seen.draft, list[float]()
        for parent, token in zip(seen.nodes, seen.tokens, strict=True):
            children = [node for node, above in enumerate(draft.parents) if above == parent]
            if not children:
                break
            right = [draft.tokens[node] == token for node in children]
            for node, one in zip(children, right, strict=True):
                if node < len(draft.signals):  # siblings of a chain have none
                    policy.calibrations[i].learn(draft.signals[node].chosen, float(one))
            if all(accepts):
                accepts.append(float(right[0]))
            if not right[0]:
                policy.siblings[i].learn(caught=any(right))
        return tuple(accepts)

    def _due(self, pairs: Pairs, round_seconds: float) -> tuple[int, list[tuple[int, int]]]:
        """Return the model to grade now, and the tokens to read and place of each text that is ready; or -1.

        The model that has waited longest is next, new ones before all others. The first grading of a new one
        may take a round, or a small share of all time, and a further one a quarter of a round.
        """
        due: list[tuple[bool, int, int, list[tuple[int, int]]]] = []
        for i in self.models:
            tested = self.policy.acceptance[i].seen
            new = tested < (ENOUGH if len(pairs) > 1 else 1)
            if not new and self.grading > self.share * self.total:
                continue
            enough = ENOUGH if not new else 4 * len(pairs) if tested else 1
            ready = sorted(
                (state.end - min(self._read(seen, i), state.first_ungraded(i)), at)
                for at, (seen, state) in enumerate(pairs)
                if self.policy.drafters[i] not in seen.request.disabled
                and (waiting := state.waiting.get(i, 0))
                and (waiting * len(pairs) >= enough or seen.request.done)
            )
            if ready and new and self.first:
                least = self.cost(ready[0][0])
                brief = least <= (0.25 if tested else 1.0) * round_seconds
                if not brief and (tested or self.first + least > 4 * self.share * self.total):
                    continue
            if ready:
                due.append((new, -self.last.get(i, -1), -i, ready))
        if not due:
            return -1, []
        *_, i, ready = max(due)
        self.last[-i] = self.rounds
        return -i, ready

    def _read(self, seen: RoundRecord, i: int) -> int:
        """Return how many tokens of this text a model has read."""
        return self.policy.texts[seen.request.id].read.get(i, 0)

    def _grade(self, pairs: Pairs, graders: Graders) -> None:
        """Grade one model that does not play, if one is due, on the texts that take the least to read."""
        policy, round_seconds = self.policy, self.total / self.rounds
        i, ready = self._due(pairs, round_seconds)
        if i < 0:
            return
        jobs: list[GradeJob] = []
        places, unread, tokens = list[int](), 0, 0
        for more, at in ready:
            seen, state = pairs[at]
            much = tokens >= ENOUGH or not self.cost.readings or self.cost(unread + more) > round_seconds
            if jobs and much:
                break
            start, length = state.first_ungraded(i), len(seen.request.tokens)
            probs = state.probs[start - state.start :] or [1.0] * (length - start)
            jobs.append(GradeJob(seen.request, start, probs, signals=frozenset({"chosen"})))
            places.append(at)
            unread, tokens = unread + more, tokens + state.waiting[i]
        before, new = graders.graded_seconds, policy.acceptance[i].seen <= 0.0
        grades = graders.grade(policy.drafters[i], jobs)
        seconds = graders.graded_seconds - before
        self.cost.add(unread, seconds)
        if new:
            self.first += seconds
        if not new or len(pairs) > 1:
            self.grading += seconds
        if grades is None:
            return
        policy.draft_price(i).read(unread, seconds)
        for at, job, mine in zip(places, jobs, grades, strict=True):
            seen, state = pairs[at]
            policy.texts[seen.request.id].read[i] = len(seen.request.tokens) - 1
            state.graded[i], state.waiting[i] = len(seen.request.tokens), 0
            for grade in mine:
                if grade.signals:
                    policy.calibrations[i].learn(grade.signals.chosen, grade.accept)
            state.windows += _windows(i, job, mine, state.rounds, policy.lengths[-1])


def _windows(
    i: int,
    job: GradeJob,
    grades: Sequence[Grade],
    rounds: Sequence[tuple[int, Sequence[int], int]],
    longest: int,
) -> list[Window]:
    """One window for each round in which it did not draft, of those that began at `start` or later."""
    windows, start, text = [], job.start, job.request.tokens
    for at, contexts, player in rounds[bisect_left(rounds, start, key=itemgetter(0)) :]:
        if player != i:
            accepts = []
            for place, grade in enumerate(grades[at - start : at - start + longest]):
                accepts.append(grade.at(place)[0])
                if accepts[-1] <= 0.0:
                    break
            windows.append(Window(i, contexts[i], tuple(accepts), text[at - 1]))
    return windows


def _start(seen: RoundRecord) -> int:
    """Return the length of the text before this round."""
    return len(seen.request.tokens) - len(seen.tokens)


def _decided(seen: RoundRecord) -> int:
    """How deep a draft went that the text decided: what comes after the end of the text was not rejected."""
    accepted = seen.outcome.accepted
    return accepted if len(seen.tokens) <= accepted else _depth(seen.draft)


def _depth(draft: Draft) -> int:
    if draft.is_chain:
        return len(draft.tokens)
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)

"""The policy `auto`: chooses drafter, draft length and stop rule by expected tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from random import Random

from ...core.arms import NEVER, Context, Decision, Stop
from ...core.outcomes import Feedback, Outcome, RoundCost
from ...core.roles import Values
from .candidates import (
    Candidate,
    Reason,
    rules,
)
from .costs import DraftCost, PassCost, is_behind, size_class
from .display import values
from .grading import DraftCall, Observed
from .offers import offers, together
from .state import MODEL_SHARE, AutoState, RequestState, kind_of

SAME_MACHINE = 1.5  # passes whose seconds differ by more than this factor are of two machines
BRIEF_PASS = 6e-3  # seconds of a pass, below which deciding takes a share of the time that counts
KNOWN_PASSES = 256.0  # passes from which what they cost is known
KNOWN_CALLS = 32.0  # calls from which what a draft costs is known
TIMED_EVERY = 4  # brief rounds of which one is timed
TRUSTED = 20.0  # tested tokens from which a drafter's own confidence may stop it


@dataclass(slots=True)
class AutoPolicy(AutoState):
    """Plays, in every round, the drafter and length of the highest gain; or no draft.

    The gain of a draft of n tokens is the sum of the chances that its first 1, 2, ... n tokens are accepted,
    less `price` times its additional seconds: drafting, reading, and a longer target pass. The price is the
    recent rate in tokens per second at places of this kind (`Throughput`), and never less than that of plain
    decoding. With one kind of state this rule maximises total tokens over total seconds (Dinkelbach 1967; the
    ratio objective of renewal rewards; docs/explanation/auto.md).

    Chances are known per drafter and context (`AcceptanceEstimate`): for a lookup, the length of its match;
    for a model, the longest match of any lookup. A model whose confidence is calibrated stops its draft as
    soon as the chance that one more token is accepted is below the price of that token. Cascades draft where
    a plain pass takes `cascades_from` seconds or longer: weighing them takes a share of briefer ones that
    counts. `AutoState` has the options and what is learned.
    """

    # -- choosing ------------------------------------------------------------------------------------

    def rests(self, batch_size: int) -> bool:
        """Return whether this round of a batch is left out, since nothing has paid for long (`Skipping`)."""
        self.measuring = False  # a new round begins
        return self.skipping.rests(batch_size)

    def plan(self, contexts: Sequence[Context]) -> None:
        """Choose the longest draft of a batch for all of its requests (see `together`)."""
        self.planned = together(self, contexts) if len(contexts) > 1 else {}

    def choose(self, context: Context, rng: Random) -> Decision:
        """Choose the arm of the highest gain at this round's hints."""
        state, batch = self.update_request(context), context.batch_size
        passes, candidates = self.pass_cost(batch), self.planned.pop(context.request, None)
        if candidates is None:
            state.price = self.price(batch, state.matched, passes)
            candidates = offers(self, context, state, passes)
        unclear = self.rereads and not self.passes[size_class(batch)].usual(batch)  # no clean plain pass yet
        best = None if unclear else self.pick(candidates)
        is_enabled = best is None or self.guard.is_enabled(self.load.factor, batch, best.gain)
        if best is None or not is_enabled:
            decision = Decision(self.index[-1, 0])
        else:
            stop = self._stop(best, passes, batch, state.price)
            decision = Decision(
                self.index[best.drafter, best.length], 1.0, rules(stop, best.prefix_length), best.hand_overs
            )
            self.skipping.drafted = True
        self._count(state, best.drafter if best is not None and is_enabled else -1, batch)
        self.measuring = (batch > 1 and self.measuring) or (best is not None and best.trial)
        self.timed = batch > 1 or self._is_timed(best)
        if self.reasons is not None:
            arm = self.arms[decision.arm]
            self.reasons.append(Reason(context.position, state.price, arm, tuple(candidates), not is_enabled))
        return decision

    def _count(self, state: RequestState, player: int, batch: int) -> None:
        """Count who drafts, and in which share of the rounds a model does once it has read a text."""
        player, shares = self.cascades.get(player, player), self.shares
        for i, context in enumerate(state.contexts):
            if batch == 1 and (context or not self.looks_up[i]):  # it could have drafted
                self.draft_cost(i).used(i == player)
            if i in state.read and (batch == 1 or player >= 0):
                shares[i] += MODEL_SHARE[0] * ((i == player) - shares[i])

    def _stop(self, best: Candidate, passes: PassCost, batch: int, price: float) -> Stop:
        """Return the stop rule of a draft; until its drafter's calibration is trusted, one that never stops.

        One more token is priced by what each of its tokens adds to the pass, which in a short draft may be
        less than in a long one.
        """
        i, length = self.cascades.get(best.drafter, best.drafter), best.prefix_length or best.length
        if self.looks_up[i]:
            return NEVER
        calibration, least = self.calibrations[i], 0.0
        if calibration.seen >= TRUSTED:
            shared = self.padded and batch > 1  # a longer draft has room in the pass that was planned
            extra, cost = [] if shared else passes.extra, self.draft_cost(i)
            _, each = cost.price(batch)
            more = each + cost.width * (extra[length] if extra else 0.0) / length
            least = 0.0 if isnan(more) else price * more / self.skills[i].mean  # nan before its first call
        return self.stopping(calibration, least)

    def values(self, batch: int = 1) -> Values:
        """Gain and seconds of every arm, the price of a second, and acceptance by match length."""
        return values(self, batch)

    # -- learning ------------------------------------------------------------------------------------

    def learn(self, feedback: Feedback) -> None:
        """Learn chances from one round of a request, and costs and calibration if the round is timed."""
        if isinstance(feedback.observed, Observed):
            self._observe(feedback.request, feedback.observed)
        for window in feedback.windows:
            skill = self.skills[window.drafter]
            skill.learn(feedback.request, window.context, window.accepts, window.token)
        for outcome in feedback.outcomes:
            self._time(feedback.request, outcome)
            if self.timed:
                self._calibrate(outcome)

    def _observe(self, request: int, seen: Observed) -> None:
        if seen.looks_up:
            self.looks_up = seen.looks_up
        if state := self.requests.get(request):
            state.written, state.read = seen.written, seen.read
        if seen.calls is not None:
            self.reading = 0.0
            for call in seen.calls:
                self._called(call)
        if graded := seen.grading:
            seconds = graded.seconds / self.load.factor
            self.draft_cost(graded.drafter).read(graded.tokens, seconds, batch=graded.batch)
            calibration = self.calibrations[graded.drafter]
            for chosen, accept in graded.chances:
                calibration.learn(chosen, accept)

    def _called(self, call: DraftCall) -> None:
        self.drafter_kinds[call.drafter] = kind_of(call.kind)
        cost = self.draft_cost(call.drafter)
        for tokens, length in call.drafts:
            cost.shaped(tokens, length)
        seconds, mates = call.seconds / self.load.factor, len(call.drafts)
        cost.drafted(call.longest, call.pending, seconds, mates=mates, batch=call.batch)
        if is_behind(call.pending, call.longest, mates):
            reading = cost.reading.each * call.pending
            self.reading += reading
            self.pace.read(reading)

    def _time(self, request: int, outcome: Outcome) -> None:
        spent = outcome.cost
        if spent is None or not isfinite(outcome.seconds):
            return
        n = spent.requests
        tokens = n * spent.width or spent.pass_tokens
        drafts, late = tokens > n, False
        if self.timed or spent.again or kind_of(spent.kind) != self.kind:
            late = self._learn_pass(spent, tokens)
        passes = self.passes[size_class(n)]
        seconds = outcome.seconds / self.load.factor
        state = self.requests.get(request)
        without = max(0.0, seconds - self.reading / n)
        self.pace.add(state is not None and state.matched, outcome.accepted + 1, without, requests=n)
        if (drafts or late) and not self.measuring:
            self.guard.add(seconds, (outcome.accepted + 1) * passes(n) / n, n)

    def _is_timed(self, best: Candidate | None) -> bool:
        """Return whether this round is timed: of brief ones whose costs are known, one in four is."""
        self.choices += 1
        passes = self.passes[0]
        known = passes.passes > KNOWN_PASSES and passes(1) < BRIEF_PASS and not (self.owed or self.doubted)
        if known and best is not None:
            drafting = self.draft_cost(self.cascades.get(best.drafter, best.drafter))
            known = drafting.calls[0].readings > KNOWN_CALLS
        return not known or self.choices % TIMED_EVERY == 0

    def _learn_pass(self, spent: RoundCost, tokens: int) -> bool:
        """Learn what a pass of so many tokens costs.

        Returns whether it was a plain one that also read again what a rejection took back.
        """
        n = spent.requests
        if n > 1:
            self.padded = spent.width > 0
        if (kind := kind_of(spent.kind)) != self.kind:
            self._switch(kind)
        self._check(spent.target, self.pass_cost(n).usual(tokens))
        passes, target, drafts = self.passes[size_class(n)], spent.target, tokens > n
        late = spent.again > 0 and not drafts
        self.rereads |= spent.again > 0
        if late:  # the draft owes the longer time
            self.owed += max(0.0, target - self.load.factor * passes(n)) if passes.known else 0.0
            return True
        if drafts and self.owed:
            target, self.owed = target + self.owed, 0.0
        else:
            self.load.add(target, passes.usual(tokens), requests=n)
        passes.add(tokens, target / self.load.factor, requests=n, padded=spent.width > 0)
        return False

    def _check(self, target: float, usual: float) -> None:
        """Forget all costs that a file brought if the first known pass takes another time, whichever way."""
        if self.doubted and usual:
            self.doubted = False
            if not usual / SAME_MACHINE < target < usual * SAME_MACHINE:
                self.other_passes.clear()
                self.other_drafts.clear()
                self.by_kind.clear()
                self.pass_costs = [PassCost() for _ in self.pass_costs]
                self.draft_costs = [DraftCost() for _ in self.draft_costs]
                self.pace = type(self.pace)()

    def _switch(self, kind: str) -> None:
        """Passes are of another kind from now on: what is known of this kind counts again."""
        self.by_kind[self.kind] = self.pace, self.guard
        fresh = type(self.pace)(), type(self.guard)()
        self.kind, self.load.factor = kind, 1.0
        self.pace, self.guard = self.by_kind.get(kind, fresh)

    def restart(self) -> None:
        """The costs may be another machine's: the first pass will tell."""
        self.doubted = True

    def _calibrate(self, outcome: Outcome) -> None:
        arm = self.arms[outcome.arm]
        if outcome.signals and arm.length:
            i, tested = self.drafters.index(arm.drafter), outcome.accepted + 1
            if self.looks_up[i]:  # is never stopped
                return
            calibration = self.calibrations[self.cascades.get(i, i)]
            head = outcome.prefix_length if i in self.cascades else tested
            for k, signals in enumerate(outcome.signals[: min(tested, head)]):
                calibration.learn(signals.chosen, float(k < outcome.accepted))

    def close(self, request: int) -> None:
        """Forget a request; its length is an example of how long answers are."""
        state = self.requests.pop(request, None)
        for skill in self.skills:
            skill.close(request)
        if state is not None and state.written:
            self.answer += (0.1 if self.answer else 1.0) * (state.written - self.answer)

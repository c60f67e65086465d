"""The policy `auto`: chooses drafter, draft length and stop rule by expected tokens per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import isfinite, isnan
from random import Random

from ...core.arms import NEVER, Arm, Context, Decision, Stop
from ...core.outcomes import Feedback, Outcome
from ...core.roles import Values
from ...state.learned import LEARNED, learned, mean_of_known
from .composite import SLOW, cascades, rules
from .drafting import DraftCost, is_behind
from .guard import Guard
from .observed import DraftCall, Observed
from .offers import offers, together
from .pace import Pace, Pacing
from .parts import (
    LENGTHS,
    Guarding,
    Match,
    NewSkill,
    Pick,
    Pricing,
    Stopping,
    best_gain,
    match_length,
    measured,
    new_skill,
    stop_by_gain,
)
from .passes import CLASSES, Load, PassCost, nearest, size_class
from .place import SHARE, Place
from .rest import Rest
from .skill import Calibration, Skill
from .timing import is_timed, learn_pass
from .values import values
from .worth import Reason, Worth

TRUSTED = 20.0  # tested tokens from which a drafter's own confidence may stop it


@dataclass(slots=True)
class AutoPolicy:
    """Plays, in every round, the drafter and length of the highest gain; or no draft.

    The gain of a draft of n tokens is the sum of the chances that its first 1, 2, ... n tokens are accepted,
    less `price` times its additional seconds: drafting, reading, and a longer target pass. The price is the
    recent rate in tokens per second at places of this kind (`Pace`), and never less than that of plain
    decoding. With one kind of place this rule maximises total tokens over total seconds (Dinkelbach 1967; the
    ratio objective of renewal rewards; docs/explanation/auto.md).

    Costs of compiled and of eager passes are kept apart: `compiled` and `drafters_compiled` say which count.
    Chances are known per drafter and context (`Skill`): for a lookup, the length of its match; for a model,
    the longest match of any lookup. A model whose confidence is calibrated stops its draft as soon as the
    chance that one more token is accepted is below the price of that token. `looks_up` says which drafters
    are lookups, known by their drafts; the recorder corrects it in the first round. Cascades draft where a
    plain pass takes `cascades_from` seconds or longer: weighing them takes a share of briefer ones that
    counts.
    The other options are the parts (see `parts`). `reasons`, if it is a list, gets an entry for each choice.
    """

    arms: tuple[Arm, ...]
    drafters: tuple[str, ...]
    looks_up: tuple[bool, ...]
    _: KW_ONLY
    new_skill: NewSkill = new_skill
    pricing: Pricing = measured
    pick: Pick = best_gain
    stopping: Stopping = stop_by_gain
    match: Match = match_length
    guard: Guarding = field(default_factory=Guard)
    load: Load = field(default_factory=Load)
    rest: Rest = field(default_factory=Rest)
    reads_hints: bool = True
    cascades_from: float = SLOW
    skills: list[Skill] = field(init=False, metadata=LEARNED)
    calibrations: list[Calibration] = field(init=False, metadata=LEARNED)
    draft_costs: list[DraftCost] = field(init=False, metadata=LEARNED)
    pass_costs: list[PassCost] = field(init=False, metadata=LEARNED)
    pace: Pacing = field(default_factory=Pace, metadata=LEARNED)
    answer: float = field(default=0.0, metadata=learned(mean_of_known))
    reasons: list[Reason] | None = None
    places: dict[int, Place] = field(default_factory=dict)
    owed: float = 0.0
    rereads: bool = False
    doubted: bool = False
    timed: bool = True
    measuring: bool = False
    reading: float = 0.0
    turn: int = 0
    compiled: bool = False
    padded: bool = False
    planned: dict[int, list[Worth]] = field(default_factory=dict)
    drafters_compiled: list[bool] = field(init=False)
    shares: list[float] = field(init=False)
    index: Mapping[tuple[int, int], int] = field(init=False)
    lengths: tuple[int, ...] = field(init=False)
    cascades: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.drafters)
        self.skills = [self.new_skill() for _ in range(n)]
        self.calibrations = [Calibration() for _ in range(n)]
        self.draft_costs = [DraftCost() for _ in range(2 * n)]  # of eager passes, then of compiled ones
        self.pass_costs = [PassCost() for _ in (*CLASSES, *CLASSES)]
        self.drafters_compiled = [False] * n
        self.shares = [1.0] * n
        self.lengths = tuple(sorted({arm.length for arm in self.arms if arm.length})) or LENGTHS
        number = {name: i for i, name in enumerate(self.drafters)}
        self.cascades = cascades(self.drafters)
        self.index = {(number.get(arm.drafter, -1), arm.length): i for i, arm in enumerate(self.arms)}

    @property
    def passes(self) -> list[PassCost]:
        """Costs of target passes as they are run at present, by class of batch size."""
        return self.pass_costs[len(CLASSES) :] if self.compiled else self.pass_costs[: len(CLASSES)]

    def pass_cost(self, batch: int) -> PassCost:
        """Costs of passes of this batch, or of the nearest size of batch that is known."""
        cost = self.pass_costs[size_class(batch) + len(CLASSES) * self.compiled]
        return cost if cost.sizes else nearest(self.passes, size_class(batch))

    def drafting(self, i: int) -> DraftCost:
        """Costs of a drafter as it is run at present."""
        return self.draft_costs[i + len(self.drafters) if self.drafters_compiled[i] else i]

    def price(self, batch: int, matched: bool) -> float:
        """Tokens that a second is worth at such a place: the recent rate, at least that of plain decoding."""
        return self._price(self.pass_cost(batch), batch, matched)

    def _price(self, passes: PassCost, batch: int, matched: bool) -> float:
        alone = passes(batch)
        rate = self.pace.rate(matched, alone / batch)
        return max(rate, batch / alone) if alone else rate

    # -- choosing ------------------------------------------------------------------------------------

    def rests(self, batch_size: int) -> bool:
        """Whether this round of a batch is left out, since nothing has paid for long (see `Rest`)."""
        self.measuring = False  # a new round begins
        return self.rest.rests(batch_size)

    def plan(self, contexts: Sequence[Context]) -> None:
        """Choose the longest draft of a batch for all of its requests (see `together`)."""
        self.planned = together(self, contexts) if len(contexts) > 1 else {}

    def choose(self, context: Context, rng: Random) -> Decision:
        """The arm of the highest gain at this round's hints."""
        place, batch = self.place(context), context.batch_size
        passes, worths = self.pass_cost(batch), self.planned.pop(context.request, None)
        if worths is None:
            place.price = self._price(passes, batch, place.matched)
            worths = offers(self, context, place, passes)
        unclear = self.rereads and not self.passes[size_class(batch)].usual(batch)  # no clean plain pass yet
        best = None if unclear else self.pick(worths)
        stands = best is None or self.guard.stands(self.load.factor, batch, best.gain)
        if best is None or not stands:
            decision = Decision(self.index[-1, 0])
        else:
            stop = self._stop(best, passes, batch, place.price)
            decision = Decision(
                self.index[best.drafter, best.length], 1.0, rules(stop, best.prefix_length), best.hand_overs
            )
            self.rest.drafted = True
        self._count(place, best.drafter if best is not None and stands else -1, batch)
        self.measuring = (batch > 1 and self.measuring) or (best is not None and best.trial)
        self.timed = batch > 1 or is_timed(self, best)
        if self.reasons is not None:
            arm = self.arms[decision.arm]
            self.reasons.append(Reason(context.position, place.price, arm, tuple(worths), not stands))
        return decision

    def _count(self, place: Place, player: int, batch: int) -> None:
        """Count who drafts, and in which share of the rounds a model does once it has read a text."""
        player, shares = self.cascades.get(player, player), self.shares
        for i, context in enumerate(place.contexts):
            if batch == 1 and (context or not self.looks_up[i]):  # it could have drafted
                self.drafting(i).used(i == player)
            if i in place.read and (batch == 1 or player >= 0):
                shares[i] += SHARE[0] * ((i == player) - shares[i])

    def _stop(self, best: Worth, passes: PassCost, batch: int, price: float) -> Stop:
        """The stop rule of a draft; until its drafter's calibration is trusted, one that never stops.

        One more token is priced by what each of its tokens adds to the pass, which in a short draft may be
        less than in a long one.
        """
        i, length = self.cascades.get(best.drafter, best.drafter), best.prefix_length or best.length
        if self.looks_up[i]:
            return NEVER
        calibration, least = self.calibrations[i], 0.0
        if calibration.seen >= TRUSTED:
            shared = self.padded and batch > 1  # a longer draft has room in the pass that was planned
            extra, cost = [] if shared else passes.extra, self.drafting(i)
            _, each = cost.price(batch)
            more = each + cost.width * (extra[length] if extra else 0.0) / length
            least = 0.0 if isnan(more) else price * more / self.skills[i].level  # nan before its first call
        return self.stopping(calibration, least)

    def place(self, context: Context) -> Place:
        """Where a request stands, with its hints of this round."""
        place = self.places.get(context.request)
        if place is None:
            place = self.places[context.request] = Place([0] * len(self.drafters))
        place.token = context.token
        place.look(context.hints, self.drafters, self.looks_up, self.match)
        return place

    # -- what the recorder asks ------------------------------------------------------------------------

    def contexts(self, request: int) -> Sequence[int]:
        """Each drafter's context at the last choice for this request."""
        return self.places[request].contexts

    def tests(self, i: int) -> float:
        """How many tokens of this drafter were tested recently."""
        return self.skills[i].seen

    def may_pay(self, i: int, batch: int) -> bool:
        """Whether one token of this drafter can be worth its cost, at the upper bound of its chance."""
        start, each = self.drafting(i).call(batch)  # that all may share
        least = min(self.price(batch, False), self.price(batch, True))
        return not self.skills[i].hope < least * (start + each) / batch

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
        if place := self.places.get(request):
            place.written, place.read = seen.written, seen.read
        if seen.calls is not None:
            self.reading = 0.0
            for call in seen.calls:
                self._called(call)
        if graded := seen.grading:
            seconds = graded.seconds / self.load.factor
            self.drafting(graded.drafter).read(graded.tokens, seconds, batch=graded.batch)
            calibration = self.calibrations[graded.drafter]
            for chosen, accept in graded.chances:
                calibration.learn(chosen, accept)

    def _called(self, call: DraftCall) -> None:
        self.drafters_compiled[call.drafter] = call.compiled
        cost = self.drafting(call.drafter)
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
        if self.timed or spent.again or spent.compiled != self.compiled:
            late = learn_pass(self, spent, tokens)
        passes = self.pass_costs[size_class(n) + len(CLASSES) * self.compiled]
        seconds = outcome.seconds / self.load.factor
        place = self.places.get(request)
        without = max(0.0, seconds - self.reading / n)
        self.pace.add(place is not None and place.matched, outcome.accepted + 1, without, requests=n)
        if (drafts or late) and not self.measuring:
            self.guard.add(seconds, (outcome.accepted + 1) * passes(n) / n, n)

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
        place = self.places.pop(request, None)
        for skill in self.skills:
            skill.close(request)
        if place is not None and place.written:
            self.answer += (0.1 if self.answer else 1.0) * (place.written - self.answer)

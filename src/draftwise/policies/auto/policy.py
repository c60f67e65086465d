"""The policy `auto`: in every round it buys tokens in the order of their worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from itertools import accumulate
from math import isfinite, isnan
from random import Random
from typing import ClassVar

from ...core.arms import NEVER, Arm, Context, Decision, Stop
from ...core.outcomes import Feedback
from ...core.roles import Values
from ...state.learned import LEARNED, learned, mean_of_known
from .chances import LEAST, Acceptance, Calibration, Siblings, match_length
from .drafts import (
    DEEPEST,
    LENGTHS,
    TAKEN,
    Candidate,
    Offer,
    Planner,
    Reason,
    Share,
    Wide,
    cascade,
    cascades,
    rules,
)
from .guard import Guard, Skipping
from .prices import (
    BATCH_SIZES,
    ENOUGH,
    FADE,
    UNLIKE,
    WINDOW,
    DraftPrice,
    PassPrice,
    Rate,
    RoundCosts,
    size_class,
)

KINDS = ("eager", "compiled", "graph", "other")  # of passes: each has prices of its own
SLOW = 10e-3  # seconds of a pass, from which weighing cascades takes a share of the time that does not count


@dataclass(slots=True)
class Text:
    """What is known of one request at its last choice.

    Attributes:
        contexts: each drafter's context.
        read: the tokens of the text that each model has read, of those that have read any.
        written: the tokens of the answer.
        samples: whether its tokens are sampled, as the first round shows.
    """

    contexts: list[int]
    read: dict[int, int] = field(default_factory=dict)
    written: int = 0
    samples: bool = False

    @property
    def matched(self) -> bool:
        """Whether any lookup had a match there."""
        return any(self.contexts)


@dataclass(slots=True)
class AutoPolicy:
    """Plays, in every round, the drafter and length of the highest gain; or no draft.

    A token of a draft is worth the chance that it is accepted, with all before it; it costs what it adds to
    the seconds of the drafter and of the target pass, times the `rate`: the recent tokens per second at
    places of this kind, and never less than that of plain decoding (Dinkelbach 1967;
    docs/explanation/auto.md). In a batch all requests share the drafters' calls and the pass (`Planner`).

    `looks_up` says which drafters are lookups; the recorder corrects it in the first round. `cascades` maps
    each cascade to the drafter that begins its drafts; they are weighed where a plain pass takes
    `cascades_from` seconds. `wide` maps each drafter with wide arms to the place of the prices of its trees,
    behind those of all chains. Those of `trees` draft trees for greedy requests, those of `beside` siblings
    of a chain's tokens for the others, which cost the pass alone; the recorder finds out in the first round.
    `reasons`, if it is a list, gets an entry for each choice.
    """

    arms: tuple[Arm, ...]
    drafters: tuple[str, ...]
    looks_up: tuple[bool, ...]
    can_learn_late: ClassVar[bool] = True
    _: KW_ONLY
    cascades_from: float = SLOW
    reads_hints: bool = True
    acceptance: list[Acceptance] = field(init=False, metadata=LEARNED)
    siblings: list[Siblings] = field(init=False, metadata=LEARNED)
    calibrations: list[Calibration] = field(init=False, metadata=LEARNED)
    draft_prices: list[DraftPrice] = field(init=False, metadata=LEARNED)
    pass_prices: list[PassPrice] = field(init=False, metadata=LEARNED)
    rates: list[Rate] = field(init=False, metadata=LEARNED)
    answer: float = field(default=0.0, metadata=learned(mean_of_known))
    guards: list[Guard] = field(init=False)
    skipping: Skipping = field(default_factory=Skipping)
    reasons: list[Reason] | None = None
    texts: dict[int, Text] = field(default_factory=dict)
    closed: dict[int, dict[int, int]] = field(default_factory=dict)  # `Text.read` of the latest that ended
    planned: dict[int, tuple[Candidate | None, float]] = field(default_factory=dict)  # and the rate there
    kind: int = 0
    tree_kind: int = -1  # of passes over trees; -1: as those over chains
    drafter_kinds: list[int] = field(init=False)
    padded: bool = False
    doubted: bool = False
    trial: bool = False
    owed: float = 0.0
    rereads: bool = False
    time: tuple[float, float] = (0.0, 0.0)  # recent seconds: of rounds, and of drafters reading in them
    index: Mapping[tuple[int, int, int], int] = field(init=False)
    owners: tuple[int, ...] = field(init=False)  # each arm's drafter; -1: none
    lengths: tuple[int, ...] = field(init=False)
    depths: tuple[int, ...] = field(init=False)
    cascades: Mapping[int, int] = field(init=False)
    wide: Mapping[int, int] = field(init=False)
    trees: frozenset[int] = frozenset()
    beside: frozenset[int] = frozenset()
    width: int = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.drafters)
        self.lengths = tuple(sorted({arm.length for arm in self.arms if arm.length})) or LENGTHS
        self.acceptance = [Acceptance(max(LENGTHS[-1], self.lengths[-1])) for _ in range(n)]
        self.siblings = [Siblings() for _ in range(n)]
        self.calibrations = [Calibration() for _ in range(n)]
        self.drafter_kinds = [0] * n
        number = {name: i for i, name in enumerate(self.drafters)}
        wide = dict.fromkeys(number[arm.drafter] for arm in self.arms if arm.width > 1)
        self.wide = {i: n + at for at, i in enumerate(wide)}
        self.width = max(arm.width for arm in self.arms)
        self._forget_prices()
        self.cascades = cascades(self.drafters)
        self.depths = tuple(n for n in self.lengths if n <= DEEPEST)
        self.owners = tuple(number.get(arm.drafter, -1) for arm in self.arms)
        self.index = {
            (i, arm.width, arm.length): at
            for at, (i, arm) in enumerate(zip(self.owners, self.arms, strict=True))
        }

    def _forget_prices(self) -> None:
        self.draft_prices = [DraftPrice() for _ in KINDS for _ in (*self.drafters, *self.wide)]
        self.pass_prices = [PassPrice() for _ in KINDS for _ in BATCH_SIZES]
        self.rates = [Rate() for _ in self.pass_prices]
        self.guards = [Guard() for _ in KINDS]

    # -- prices --------------------------------------------------------------------------------------

    def _place(self, batch: int) -> int:
        """Return the index of passes of the present kind and this class of batch."""
        return self.kind * len(BATCH_SIZES) + size_class(batch)

    def passes(self, batch: int) -> PassPrice:
        """Return the prices of passes of this batch, or of the nearest size of batch that is known."""
        at = self._place(batch)
        if not self.pass_prices[at].has_readings:
            first = self.kind * len(BATCH_SIZES)
            sizes = range(first, first + len(BATCH_SIZES))
            priced = [k for k in sizes if self.pass_prices[k].has_readings]
            at = min(priced, key=lambda k: abs(k - at), default=at)
        return self.pass_prices[at]

    def draft_price(self, i: int, width: int = 1) -> DraftPrice:
        """Return the prices of a drafter's chains, or of its trees, as it is run at present."""
        each = len(self.draft_prices) // len(KINDS)
        return self.draft_prices[self.drafter_kinds[i] * each + (self.wide[i] if width > 1 else i)]

    def rate(self, batch: int, matched: bool, passes: PassPrice | None = None) -> float:
        """Return the tokens that a second is worth here: the recent rate, at least that of plain decoding."""
        plain = (passes or self.passes(batch))(batch)
        rate = self.rates[self._place(batch)](matched, plain / batch)
        return max(rate, batch / plain) if plain else rate

    # -- choosing ------------------------------------------------------------------------------------

    def rests(self, batch_size: int) -> bool:
        """Return whether this round of a batch is left out, since nothing has paid for long (`Skipping`)."""
        self.trial = False
        return self.skipping.rests(size_class(batch_size), batch_size)

    def plan(self, contexts: Sequence[Context]) -> None:
        batch = contexts[0].batch_size
        passes = self.passes(batch)
        rates = self.rate(batch, False, passes), self.rate(batch, True, passes)
        texts = [self._text(context) for context in contexts]
        drafts: Mapping[int, Candidate] = {}
        if passes(batch):
            part = sum([text.matched for text in texts]) / len(texts)
            rate = part * rates[True] + (1.0 - part) * rates[False]
            offers = self._offers(contexts, texts, passes, rate)
            prices = [self.draft_price(i) for i in range(len(self.drafters))]
            calls = [(0.0, 0.0) if price.trial else price(batch) for price in prices]
            widths, trees = [price.width for price in prices], self._trees(batch) or passes
            planner = Planner(
                passes, rate, batch, self.padded, self.lengths, widths, calls, trees, self.width
            )
            drafts = planner.plan(offers)
            offered = {one.drafter for shares in offers.values() for one in shares}
            self._leave_out(offered, drafts.values(), 1.0 + self.skipping.skipped)
        self.planned = {
            context.request: (drafts.get(context.request), rates[text.matched])
            for context, text in zip(contexts, texts, strict=True)
        }

    def _offers(
        self, contexts: Sequence[Context], texts: Sequence[Text], passes: PassPrice, rate: float
    ) -> dict[int, list[Share]]:
        """Return what all drafters could draft for each request of a batch."""
        batch, offers, room = (
            contexts[0].batch_size,
            dict[int, list[Share]](),
            passes.room(contexts[0].batch_size),
        )
        trials = [price.trial for price in map(self.draft_price, range(len(self.drafters)))]
        least: dict[int, float] = {}
        for context, text in zip(contexts, texts, strict=True):
            mine = offers[context.request] = list[Share]()
            for i, curve in self._ready(context, text):
                reading = rate * self._reading(i, context, text, curve[:room])
                least[i] = min(reading, least.get(i, reading))
                mine.append(Share(i, curve, trials[i], reading, self._wide(i, curve, text, batch)))
        for shares in () if self.padded or not any(trials) else offers.values():
            # A trial needs no text that its drafter would have to read first, unless all rows draft anyway.
            shares[:] = [one for one in shares if not one.trial or one.reading <= UNLIKE * least[one.drafter]]
        return offers

    def choose(self, context: Context, rng: Random) -> Decision:
        batch = context.batch_size
        passes = self.passes(batch)
        if batch == 1:
            self.trial = False
            text = self._text(context)
            rate = self.rate(1, text.matched, passes)
            candidates = self._candidates(context, text, passes, rate)
            best = max(candidates, key=lambda one: one.gain, default=None)
            if best is not None and best.gain <= 0.0:
                best = None
        else:
            if context.request not in self.planned:  # the other requests have arms of their own
                self.plan([context])
            best, rate = self.planned.pop(context.request)
            candidates = [] if best is None else [best]
        if self.rereads and not self.pass_prices[self._place(batch)].usual(batch):
            best = None  # no clean plain pass shows yet what reading again takes
        passed = (1.0 + self.skipping.skipped) / batch if batch > 1 else 1.0
        paused = not self.guards[self.kind].allows(best.gain if best else 0.0, passed)
        if best is None or paused:
            decision = Decision(self.index[-1, 1, 0])
        else:
            rule, self.skipping.drafted = self._stop(best, batch, passes, rate), True
            self.trial = self.trial or best.trial
            played = self.index[best.drafter, best.width, best.length]
            decision = Decision(played, 1.0, rules(rule, best.prefix_length), best.hand_overs)
        if batch == 1:
            offered = {one.drafter for one in candidates} - self.cascades.keys()
            self._leave_out(offered, () if best is None or paused else (best,))
        if self.reasons is not None:
            arm = self.arms[decision.arm]
            self.reasons.append(Reason(context.position, rate, arm, tuple(candidates), paused))
        return decision

    def _leave_out(self, offered: Set[int], played: Iterable[Candidate], rounds: float = 1.0) -> None:
        """Count rounds for chains and trees that could have been drafted in them and were not."""
        left = {(i, 1) for i in offered} | {(i, self.width) for i in offered & self.trees}
        for best in played:
            i = self.cascades.get(best.drafter, best.drafter)
            left -= {(i, 1), (i, self.width if best.is_tree else 1)}
        for i, width in left:
            self.draft_price(i, width).left_out(rounds)

    def _text(self, context: Context) -> Text:
        """Return the state of a request, with its hints of this round.

        A lookup's context is the length of its match, that of all models the longest match of any lookup.
        """
        if (text := self.texts.get(context.request)) is None:  # one that continues was read before
            text = self.texts[context.request] = Text([], self.closed.pop(context.request, {}))
        hints, lookups = context.hints, self.looks_up
        own = [
            match_length(hints.get(name, 0.0)) if up else 0
            for name, up in zip(self.drafters, lookups, strict=True)
        ]
        best = max(own, default=0)
        text.contexts = [at if up else best for at, up in zip(own, lookups, strict=True)]
        return text

    def _ready(self, context: Context, text: Text) -> list[tuple[int, Sequence[float]]]:
        """Return the drafters that may draft, and the chances of their first 1, 2, ... tokens.

        A lookup needs a match; a model that was never graded waits until the recorder has done that.
        """
        return [
            (i, self.acceptance[i].after(context.token, text.contexts[i]))
            for i, name in enumerate(self.drafters)
            if i not in self.cascades
            and name not in context.unavailable
            and (text.contexts[i] if self.looks_up[i] else self.acceptance[i].seen)
        ]

    def _candidates(self, context: Context, text: Text, passes: PassPrice, rate: float) -> list[Candidate]:
        """Return what every drafter is worth in this round, at its best length."""
        room, most = passes.room(1), self.lengths[-1]
        candidates: list[Candidate] = []
        offers: dict[int, Offer] = {}
        for i, curve in self._ready(context, text):
            price = self.draft_price(i)
            extra = self._extra(passes, price.width, most)
            reading = self._reading(i, context, text, curve)
            if trial := price.trial:
                length = next((n for n in self.lengths if n >= min(trial, room)), most)
                gain = sum(curve) - rate * (extra[1] + reading)
                candidates.append(Candidate(i, length, sum(curve[:length]), 0.0, gain, trial=True))
                continue
            start, each = price(1)
            offers[i] = Offer(i, curve[: max(1, int(room / price.width))], start + reading, each, extra)
            candidates.append(offers[i].best(rate, self.lengths))
            if curve and (wide := self._wide(i, curve, text, 1)):
                candidates.append(self._best_wide(wide, offers[i], passes, rate))
        if self.cascades and passes(1) >= self.cascades_from:
            for i, first in self.cascades.items():
                if first in offers and not self.looks_up[first] and offers[first].survival:
                    if self.drafters[i] in context.unavailable or self.draft_price(first).width > 1.0:
                        continue
                    tails = self.acceptance[i].survival
                    chance = max(tails(TAKEN), default=LEAST)
                    allowed = [n for n in self.lengths if n <= room] or self.lengths[:1]
                    if (best := cascade(i, offers[first], chance, tails, rate, allowed)) is not None:
                        candidates.append(best)
        return candidates

    def _wide(self, i: int, curve: Sequence[float], text: Text, batch: int) -> Wide | None:
        """Return a drafter's wide drafts: a head's trees if the text is greedy, else siblings of chains.

        Trees of unknown cost are taken to cost a chain, with half of all nodes; siblings take no time.
        """
        if i in self.trees and not text.samples:
            price, survival = self.draft_price(i, self.width), self.siblings[i].survival(curve)
            if price.trial:
                return Wide(survival, 0.5 * self.width, is_tree=True, trial=True)
            (start, each), chain = price(batch), self.draft_price(i)(batch)
            return Wide(survival, price.width, (start - chain[0], each - chain[1]), is_tree=True)
        return Wide(self.siblings[i].beside(curve), self.width) if i in self.beside else None

    def _best_wide(self, wide: Wide, chain: Offer, passes: PassPrice, rate: float) -> Candidate:
        """Return the best wide draft of one request."""
        room = passes.room(1)
        survival = wide.survival[: max(1, int(room / wide.nodes))]
        start, each = chain.start + wide.call[0], chain.each + wide.call[1]
        offer = Offer(chain.drafter, survival, start, each, self._extra(passes, wide.nodes, DEEPEST))
        best = offer.best(rate, self.depths)
        best.width, best.is_tree, best.trial = self.width, wide.is_tree, wide.trial
        if best.trial:
            trial = self.draft_price(chain.drafter, self.width).trial
            best.length = next((n for n in self.depths if n >= min(trial, room)), best.length)
        return best

    def _trees(self, batch: int) -> PassPrice | None:
        """Return the prices of passes over trees, if they run in another way than those over chains."""
        if self.tree_kind in (-1, self.kind):
            return None
        prices = self.pass_prices[self.tree_kind * len(BATCH_SIZES) + size_class(batch)]
        return prices if prices.has_readings else None

    def _extra(self, passes: PassPrice, width: float, most: int, batch: int = 1) -> Sequence[float]:
        """Return seconds that one request's draft of 0, 1, ... `most` tokens of depth adds to the pass."""
        if width <= 1.0 or (trees := self._trees(batch)) is None:
            return passes.extra(batch, most, width)
        return [0.0, *(trees(batch + n * width) - passes(batch) for n in range(1, most + 1))]

    def _reading(self, i: int, context: Context, text: Text, curve: Sequence[float]) -> float:
        """Return seconds in which a model reads what it has not read, spread over the rounds that are left.

        They are priced by the rate of all time, reading included: no round of this text makes up for them.
        """
        if not (each := self.draft_price(i).reading.each):  # as for lookups, which read nothing
            return 0.0
        unread = context.length - text.read.get(i, 0)
        left = max((self.answer or WINDOW) - context.position, 0.5 * context.position, 8.0)
        rounds = min(left, context.remaining) * self.acceptance[i].confidence / (1.0 + sum(curve))
        whole, reading = self.time
        return each * unread / max(1.0, rounds) * (whole / (whole + reading) if whole else 1.0)

    def _stop(self, best: Candidate, batch: int, passes: PassPrice, rate: float) -> Stop:
        """Return the stop rule of a draft; until its drafter's calibration is trusted, one that never stops.

        Draft on while the chance that all tokens so far and one more are accepted is above what one more
        costs, by what each of this draft's tokens adds to the pass. A node of a tree must be worth its part
        of the pass, and all nodes of a depth the step to the next.
        """
        i, length = self.cascades.get(best.drafter, best.drafter), best.prefix_length or best.length
        calibration, least, deeper = self.calibrations[i], 0.0, 0.0
        if self.looks_up[i]:
            return NEVER
        if calibration.seen >= ENOUGH:
            price = self.draft_price(i, best.width if best.is_tree else 1)
            step, mean = price(batch)[1] / batch, self.acceptance[i].mean
            width = price.width if best.is_tree else 1.0
            pads = self.padded and batch > 1  # then a row's own length adds nothing
            more = 0.0 if pads else self._extra(passes, width, length, batch)[length] / (length * width)
            if best.is_tree:
                least, deeper = rate * more, 0.0 if isnan(step) else rate * step / mean
            else:
                seconds = step + max(best.width, price.width) * more
                least = 0.0 if isnan(seconds) else rate * seconds / mean
        return Stop("gain", least, calibration, deeper=deeper)

    # -- learning ------------------------------------------------------------------------------------

    def learn(self, feedback: Feedback) -> None:
        """Learn chances from what a text has shown about drafts that began in one round."""
        for window in feedback.windows:
            self.acceptance[window.drafter].learn(window.context, window.accepts, window.token)
        for outcome in feedback.outcomes:
            signals, i = outcome.signals, self.owners[outcome.arm]
            if signals and self.arms[outcome.arm].width == 1 and not self.looks_up[i]:
                calibration, tested = self.calibrations[self.cascades.get(i, i)], outcome.accepted + 1
                first = outcome.prefix_length if i in self.cascades else tested
                for k, signal in enumerate(signals[: min(tested, first)]):
                    calibration.learn(signal.chosen, float(k < outcome.accepted))

    def spent(self, costs: RoundCosts, reading: float) -> None:
        """Learn what a round took; `reading` are the seconds of it in which drafters read texts.

        Seconds are NaN where the pass also read a prompt.
        """
        cost = costs.cost
        n, kind = cost.requests, pass_kind(cost.kind)
        if costs.has_tree:
            self.tree_kind = kind
        elif kind != self.kind:
            self.kind, self.owed = kind, 0.0
        if n > 1:
            self.padded = cost.width > 0
        part = reading / n
        rounds = {request: (one - part, new) for request, (one, new) in costs.rounds.items()}
        whole, written = sum(one for one, _ in rounds.values()), sum(new for _, new in rounds.values())
        if not isfinite(whole):
            return
        self.time = FADE * self.time[0] + whole, FADE * self.time[1] + reading
        tokens, target = n * cost.width or cost.pass_tokens, cost.target
        self.rereads |= cost.again > 0
        at = kind * len(BATCH_SIZES) + size_class(n)
        self._check(target, self.pass_prices[at].usual(tokens))
        passes, rate = self.pass_prices[at], self.rates[self._place(n)]
        if cost.again and tokens <= n:  # the draft before it owes what it read again
            self.owed += max(0.0, target - passes(n)) if passes.has_readings else 0.0
        else:
            passes.add(tokens, target + (self.owed if tokens > n else 0.0), doubts=n == 1 or self.padded)
            self.owed = 0.0 if tokens > n else self.owed
        for request, (one, new) in rounds.items():
            rate.add(request in costs.matched, new, max(0.0, one), n)
        if (tokens > n or cost.again) and not costs.is_trial:
            self.guards[self.kind].add(whole + reading, written * self.passes(n)(n) / n)

    def _check(self, target: float, usual: float) -> None:
        """Forget all prices that a file brought if the first known pass takes another time."""
        if self.doubted and usual:
            self.doubted = False
            if not usual / UNLIKE < target < usual * UNLIKE:
                self._forget_prices()

    def restart(self) -> None:
        """The prices may be another machine's: the first pass will tell."""
        self.doubted = True

    def close(self, request: int) -> None:
        """Forget a request but for what models have read of it; its length is one that answers have."""
        text = self.texts.pop(request, None)
        if text is not None and text.read:
            self.closed[request] = text.read
            if len(self.closed) > WINDOW:
                del self.closed[next(iter(self.closed))]
        if text is not None and text.written:
            self.answer += (0.1 if self.answer else 1.0) * (text.written - self.answer)

    # -- telling -------------------------------------------------------------------------------------

    def values(self, batch: int = 1) -> Values:
        """Gain and seconds of every arm, the price of a second, and acceptance by length of the match."""
        passes, rates = self.passes(batch), [self.rate(batch, matched) for matched in (False, True)]
        gains, seconds = list[float | None]([0.0]), list[float | None]([0.0])  # of no draft
        for i, arm in zip(self.owners[1:], self.arms[1:], strict=True):
            price = self.draft_price(i, arm.width if i in self.trees else 1)
            start, each = price(batch)
            nodes = max(arm.width if i in self.beside - self.trees else 1, price.width)
            more = self._extra(passes, nodes, self.lengths[-1], batch)[arm.length]
            spent = (start + each * arm.length) / batch + more
            seconds.append(None if isnan(spent) else spent)
            gains.append(self._gain(i, arm, spent, rates))
        places = zip(("without a match", "with a match"), rates, strict=True)
        return Values(
            "tokens gained a round",
            tuple(gains),
            tuple(seconds),
            {place: rate for place, rate in places if rate > 0.0},
            passes(batch) or None,
            {name: _matches(one) for name, one in zip(self.drafters, self.acceptance, strict=True)},
        )

    def _gain(self, i: int, arm: Arm, spent: float, rates: Sequence[float]) -> float | None:
        """Return the mean gain of an arm over the contexts in which its drafter was tested."""
        whole, total, skill = 0.0, 0.0, self.acceptance[i]
        for context in range(int(self.looks_up[i]), skill.contexts):  # without a match no lookup drafts
            if weight := skill.tested[context][0]:
                curve = skill.survival(context)
                if arm.width > 1:
                    wide = self.siblings[i]
                    curve = wide.survival(curve) if i in self.trees else wide.beside(curve)
                sums = [0.0, *accumulate(curve)]
                total += weight * (sums[min(arm.length, len(sums) - 1)] - rates[context > 0] * spent)
                whole += weight
        return None if isnan(total) or not whole else total / whole


MATCH_NAMES = ("none", "1", "2", "3", "4", "5 to 8", "9 to 16", "over 16")  # of `MATCHES`


def _matches(skill: Acceptance) -> dict[str, tuple[float, float]]:
    """Return tokens tested and accepted by context, as far as they are remembered."""
    rows = zip(MATCH_NAMES, map(sum, skill.tested), map(sum, skill.accepted), strict=True)
    return {label: (tested, accepted) for label, tested, accepted in rows if tested}


@cache
def pass_kind(word: str) -> int:
    """Return the kind of a pass; what follows a colon is its width, which prices know by tokens."""
    name = word.partition(":")[0] or KINDS[0]
    return KINDS.index(name) if name in KINDS else len(KINDS) - 1

"""What `auto` keeps of a request, of the loss by drafting, and of rounds in which no draft pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf

from ...core.arms import Arm, Context
from ...state.learned import LEARNED, learned, mean_of_known
from .acceptance import AcceptanceEstimate, Calibration
from .candidates import (
    LENGTHS,
    SLOW,
    Candidate,
    Match,
    NewSkill,
    Pick,
    Pricing,
    Reason,
    Stopping,
    best_gain,
    cascades,
    match_length,
    measured,
    new_skill,
    stop_by_gain,
)
from .costs import BATCH_SIZES, DraftCost, Load, PassCost, Throughput, nearest, size_class


@dataclass(slots=True)
class RequestState:
    """What is known of one request.

    Attributes:
        contexts: each drafter's context at the last choice.
        read: the tokens of the text that each model has read, of those that have read any.
        written: the tokens of the answer.
        matched: whether any lookup had a match there.
        price: the tokens that a second was worth at the last choice.
        token: the last token of the text there.
    """

    contexts: list[int]
    read: Mapping[int, int] = field(default_factory=dict)
    written: int = 0
    matched: bool = False
    price: float = 0.0
    token: int = -1

    def read_hints(
        self, hints: Mapping[str, float], drafters: Sequence[str], looks_up: Sequence[bool], match: Match
    ) -> None:
        """Take each lookup's context from its hint, and that of all models from the best of them."""
        own, best = [0] * len(drafters), 0
        for i, name in enumerate(drafters):
            if looks_up[i] and (hint := hints.get(name)):
                own[i] = match(hint)
                best = max(best, own[i])
        self.matched = best > 0
        if best > 0:
            own = [own[i] if up else best for i, up in enumerate(looks_up)]
        self.contexts = own


USUAL_ANSWER = 64.0  # tokens of an answer, before the first has ended
MODEL_SHARE = (0.05, 0.1)  # weight of the last round in a model's share, and the least that it counts


def rounds_left(answer: float, position: int, tokens: float, share: float = 1.0, room: float = inf) -> float:
    """The rounds over which reading is paid off, from the length of earlier answers and the `room` for more.

    A round writes so many `tokens` where the model drafts. In many of those that are left a lookup drafts, or
    no drafter does: the model drafts in a `share` of them.
    """
    left = min(max((answer or USUAL_ANSWER) - position, 0.5 * position, 8.0), room)
    return max(1.0, max(share, MODEL_SHARE[1]) * left / tokens)


JUDGED_ROUNDS = 64.0  # rounds of speculation that are judged together
GUARD_MEMORY = 1.0 - 1.0 / JUDGED_ROUNDS
FIRST_PAUSE, PAUSE_GROWTH, LONGEST_PAUSE = 128, 4, 8192  # rounds of a pause
PROBE_EVERY = 64  # rounds between two looks at plain decoding while the machine is not as it was
UNUSUAL_LOAD = 1.25  # times faster or slower than usual
PAUSED_GAIN = 1.0  # tokens that a draft must be expected to gain to be made in a pause, at first
RESUMED_GAIN = 1 / 16  # of them: the pause is over


@dataclass(slots=True)
class Guard:
    """Holds what speculation took against what plain decoding would have taken for the same tokens.

    Estimates may be wrong; this compares seconds that were spent. When the last rounds with drafts in them
    took longer than plain passes for as many tokens, no draft is made for a while: 128 rounds, and four times
    as many each time that the next trial fails too, so that the loss stays a small part of all time.

    In a batch every request reports its part of a pass: all these numbers are of passes.

    A pause after a trial that failed does not hold a draft that is expected to gain more than one token, such
    as the long matches of a text that is a copy. Each that fails doubles that number, each that succeeds
    halves it, until the pause is over.

    Under an unusual load the time of a plain pass is unknown until one has run: then one
    round in 64 is plain. A pause that began under another load is over.
    """

    spent: float = 0.0
    plain: float = 0.0
    rounds: float = 0.0
    pause: float = 0.0
    penalty: int = FIRST_PAUSE
    least: float = inf
    looked: int = 0
    load: float = 1.0

    def is_enabled(self, load: float = 1.0, batch: int = 1, gain: float = 0.0) -> bool:
        """Return whether this request may draft in this round, on a machine so many times slower than usual.

        `gain` is what the draft is expected to gain, in tokens.
        """
        if self.pause > 0.0 and not 1.0 / UNUSUAL_LOAD < load / self.load < UNUSUAL_LOAD:
            self.pause = 0.0
        if self.pause > 0.0:
            self.pause -= 1.0 / batch
            return gain > self.least
        self.load = load
        self.looked += 1
        if self.looked > PROBE_EVERY * batch and not 1.0 / UNUSUAL_LOAD < load < UNUSUAL_LOAD:
            whole = 2 * batch - 2  # rounds that hold a pass of the batch, wherever it begins
            self.looked, self.pause, self.least = 0, whole / batch, inf
            return False
        return True

    def add(self, seconds: float, plain: float, batch: int = 1) -> None:
        """One round in a pass with drafts: what it took, and what plain passes take for its tokens."""
        part = 1.0 / batch
        if self.pause > 0.0:
            self.least *= 2.0 ** (part if seconds > plain else -part)
            if self.least <= RESUMED_GAIN:
                self.pause = 0.0
            return
        keep = GUARD_MEMORY if batch == 1 else GUARD_MEMORY**part
        self.spent = keep * self.spent + seconds
        self.plain = keep * self.plain + plain
        self.rounds += part
        if self.rounds < JUDGED_ROUNDS:
            return
        if self.spent > self.plain > 0.0:
            self.pause, self.penalty = float(self.penalty), min(PAUSE_GROWTH * self.penalty, LONGEST_PAUSE)
            self.spent, self.plain, self.rounds, self.least = 0.0, 0.0, 0.0, PAUSED_GAIN
        elif self.rounds > 4 * JUDGED_ROUNDS:
            self.penalty = FIRST_PAUSE


IDLE_LOOKS = 4  # looks without a draft for each further round of rest
LONGEST_SKIP = 7  # rounds of rest


@dataclass(slots=True)
class Skipping:
    """Counts the looks in a row after which nothing was drafted: the more of them, the rarer they become.

    With 16 requests or more there are up to `LONGEST_SKIP` rounds between two looks, with fewer half as many
    as requests. A batch of another size class is looked at again.
    """

    at: int = -1
    idle: int = 0
    left: int = 0
    drafted: bool = True

    def rests(self, batch: int) -> bool:
        """Return whether this round is left out; if not, `drafted` is to say whether anything was."""
        if size_class(batch) != self.at:
            self.at, self.idle, self.left, self.drafted = size_class(batch), 0, 0, True
        if self.left > 0:
            self.left -= 1
            return True
        self.idle = 0 if self.drafted else self.idle + 1
        self.left, self.drafted = min(self.idle // IDLE_LOOKS, LONGEST_SKIP, batch // 2), False
        return False


SAVED = {"": 0, "compiled": 1}  # kinds of passes whose costs a state file has, and their places in it


def kind_of(word: str) -> str:
    """Return the kind of a pass under which its costs are kept: what follows a colon is its width, which the
    costs know by tokens."""
    kind = word.partition(":")[0]
    return "" if kind == "eager" else kind


@dataclass(slots=True)
class AutoState:
    """What `auto` knows and how it may be changed: options, learned numbers, and the state of each request.

    Costs are kept by kind of pass: `kind` and `drafter_kinds` say which count, and `by_kind` has the rate and
    the guard of the kinds before. Costs of the kinds in `SAVED` are learned numbers.
    `looks_up` says which drafters are lookups, known by their drafts; the recorder corrects it in the first
    round. `cascades` maps each cascade to the drafter that begins its drafts. `answer` is the mean length of
    answers. `owed` are seconds of reading again that the next draft is charged with. `reasons`, if it is a
    list, gets an entry for each choice. Options from `new_skill` to `match` are functions of `candidates`.
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
    guard: Guard = field(default_factory=Guard)
    load: Load = field(default_factory=Load)
    skipping: Skipping = field(default_factory=Skipping)
    reads_hints: bool = True
    cascades_from: float = SLOW
    skills: list[AcceptanceEstimate] = field(init=False, metadata=LEARNED)
    calibrations: list[Calibration] = field(init=False, metadata=LEARNED)
    draft_costs: list[DraftCost] = field(init=False, metadata=LEARNED)
    pass_costs: list[PassCost] = field(init=False, metadata=LEARNED)
    pace: Throughput = field(default_factory=Throughput, metadata=LEARNED)
    answer: float = field(default=0.0, metadata=learned(mean_of_known))
    reasons: list[Reason] | None = None
    requests: dict[int, RequestState] = field(default_factory=dict)
    owed: float = 0.0
    rereads: bool = False
    doubted: bool = False
    timed: bool = True
    measuring: bool = False
    reading: float = 0.0
    choices: int = 0
    kind: str = ""
    padded: bool = False
    planned: dict[int, list[Candidate]] = field(default_factory=dict)
    drafter_kinds: list[str] = field(init=False)
    other_passes: dict[str, list[PassCost]] = field(default_factory=dict)
    other_drafts: dict[tuple[int, str], DraftCost] = field(default_factory=dict)
    by_kind: dict[str, tuple[Throughput, Guard]] = field(default_factory=dict)
    shares: list[float] = field(init=False)
    index: Mapping[tuple[int, int], int] = field(init=False)
    lengths: tuple[int, ...] = field(init=False)
    cascades: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.drafters)
        self.skills = [self.new_skill() for _ in range(n)]
        self.calibrations = [Calibration() for _ in range(n)]
        self.draft_costs = [DraftCost() for _ in SAVED for _ in range(n)]
        self.pass_costs = [PassCost() for _ in SAVED for _ in BATCH_SIZES]
        self.drafter_kinds = [""] * n
        self.shares = [1.0] * n
        self.lengths = tuple(sorted({arm.length for arm in self.arms if arm.length})) or LENGTHS
        number = {name: i for i, name in enumerate(self.drafters)}
        self.cascades = cascades(self.drafters)
        self.index = {(number.get(arm.drafter, -1), arm.length): i for i, arm in enumerate(self.arms)}

    @property
    def passes(self) -> list[PassCost]:
        """Costs of target passes as they are run at present, by class of batch size."""
        n, kind = len(BATCH_SIZES), self.kind
        if kind in SAVED:
            return self.pass_costs[SAVED[kind] * n :][:n]
        if kind not in self.other_passes:
            self.other_passes[kind] = [PassCost() for _ in BATCH_SIZES]
        return self.other_passes[kind]

    def pass_cost(self, batch: int) -> PassCost:
        """Return the costs of passes of this batch, or of the nearest size of batch that is known."""
        passes, at = self.passes, size_class(batch)
        return passes[at] if passes[at].sizes else nearest(passes, at)

    def draft_cost(self, i: int) -> DraftCost:
        """Return the costs of a drafter as it is run at present."""
        kind = self.drafter_kinds[i]
        if kind in SAVED:
            return self.draft_costs[i + SAVED[kind] * len(self.drafters)]
        if (i, kind) not in self.other_drafts:
            self.other_drafts[i, kind] = DraftCost()
        return self.other_drafts[i, kind]

    def price(self, batch: int, matched: bool, passes: PassCost | None = None) -> float:
        """Return the tokens that a second is worth here: the recent rate, at least that of plain decoding."""
        alone = (passes or self.pass_cost(batch))(batch)
        rate = self.pace.rate(matched, alone / batch)
        return max(rate, batch / alone) if alone else rate

    def update_request(self, context: Context) -> RequestState:
        """Return the state of a request, with its hints of this round."""
        request = self.requests.get(context.request)
        if request is None:
            request = self.requests[context.request] = RequestState([0] * len(self.drafters))
        request.token = context.token
        request.read_hints(context.hints, self.drafters, self.looks_up, self.match)
        return request

    def contexts(self, request: int) -> Sequence[int]:
        """Return each drafter's context at the last choice for this request."""
        return self.requests[request].contexts

    def tests(self, i: int) -> float:
        """Return how many tokens of this drafter were tested recently."""
        return self.skills[i].seen

    def may_pay(self, i: int, batch: int) -> bool:
        """Return whether a token of this drafter can be worth its cost, at the upper bound of its chance."""
        start, each = self.draft_cost(i).call(batch)  # that all may share
        least = min(self.price(batch, False), self.price(batch, True))
        return not self.skills[i].upper_bound < least * (start + each) / batch

"""The drafts that a round may buy: expected tokens, less those that their seconds would write otherwise."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

from ...core.arms import Arm, HandOver, Stop
from ...specs import cascade_parts, parse_drafter, takes_over
from .chances import CONTEXTS, MATCHES
from .prices import PassPrice

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
WIDTH, DEEPEST = 4, 8  # of a tree: nodes for a token of its depth, at most, and its depth
END = Stop("confidence", 2.0)  # no probability is that high: the token is the last
TAKEN = 0  # the context in which a cascade is known by whether its second part took over
LEAST_MATCH = (0, *(int(n) + 1 for n in MATCHES))  # the shortest match of each context


@dataclass(slots=True)
class Candidate:
    """The best draft of one drafter in this round.

    `gain` is its expected accepted `tokens`, less the tokens that its `seconds` would write otherwise. A
    `trial` is made to measure what its drafter costs. `width` is above 1 for a tree, or a chain with
    siblings. `prefix_length` is the most tokens of its first part, if it is composite, and `hand_overs` say
    when the second takes over.
    """

    drafter: int
    length: int
    tokens: float
    seconds: float
    gain: float
    trial: bool = False
    prefix_length: int = 0
    hand_overs: tuple[HandOver, ...] = ()
    width: int = 1
    is_tree: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a round went as it did: the price of a second in tokens, the arm, what each drafter was worth, and
    whether the guard had turned speculation off."""

    position: int
    rate: float
    arm: Arm
    candidates: tuple[Candidate, ...]
    paused: bool


@dataclass(slots=True)
class Offer:
    """What one drafter could draft: the chances that its first 1, 2, ... tokens are accepted, and seconds.

    These are of a call's `start`, of `each` of its tokens, and what 0, 1, ... of them add to the pass.
    """

    drafter: int
    survival: Sequence[float]
    start: float
    each: float
    extra: Sequence[float]

    def best(self, rate: float, lengths: Sequence[int]) -> Candidate:
        """Return the draft of the highest gain, where a second is worth `rate` tokens."""
        start, each, extra = self.start, self.each, self.extra
        sums = [0.0, *accumulate(self.survival)]
        most, whole = len(sums) - 1, sums[-1]
        best, highest, expected = 0, float("-inf"), 0.0
        for length in lengths:
            tokens = sums[length] if length < most else whole
            gain = tokens - rate * (start + each * length + extra[length])
            if gain > highest:
                best, highest, expected = length, gain, tokens
            if length >= most or whole - tokens < highest - gain:  # a longer draft costs no less
                break
        return Candidate(self.drafter, best, expected, start + each * best + extra[best], highest)


# -- cascades: a model begins, and a lookup continues where the model's tokens have made a match ----------


def cascades(drafters: Sequence[str]) -> Mapping[int, int]:
    """Return which of these drafters are cascades with `match`, and which one begins their drafts."""
    firsts = {}
    for i, spec in enumerate(map(parse_drafter, drafters)):
        if takes_over(spec) and (first := cascade_parts(spec.path)[0]) in drafters:
            firsts[i] = drafters.index(first)
    return firsts


def cascade(
    i: int,
    offer: Offer,
    chance: float,
    tails: Callable[[int], Sequence[float]],
    rate: float,
    lengths: Sequence[int],
) -> Candidate | None:
    """Return the model's best draft, and how many tokens a lookup adds to it with a match of each context.

    `chance` is that it adds any, and `tails` the chances of its tokens by the context of its match. They cost
    nothing but a longer target pass. Inside the draft they must be worth more than what the model would add.
    """
    own = offer.best(rate, lengths)
    if own.gain <= 0.0:
        return None
    extra, right, n = offer.extra, offer.survival[0], own.length
    most = len(extra) - 1
    at = min(n, most // 2)
    least = max(n, at + 1)
    rooms = [(end - at, rate * (extra[end] - extra[at])) for end in lengths if least <= end <= most]
    going_on = sum(offer.survival[1:n]) / right - rate * offer.each * (n - 1)
    hand_overs, longest, tokens, gain = list[HandOver](), n, 0.0, 0.0
    for match in range(1, CONTEXTS):
        sums = [0.0, *accumulate(tails(match))]
        value, room, accepted, cost = 0.0, 0, 0.0, 0.0  # gained, room, tokens accepted there, their cost
        for more, price in rooms:
            right_there = sums[more] if more < len(sums) else sums[-1]
            if (net := right * right_there - price) > value:
                value, room, accepted, cost = net, more, right_there, price
        if room and not hand_overs:
            tokens, gain = chance * right * accepted, chance * value
        if room or hand_overs:
            hand_overs.append(HandOver(LEAST_MATCH[match], room, accepted - cost > going_on))
            longest = max(longest, at + room)
    if not hand_overs:
        return None
    return Candidate(
        i, longest, own.tokens + tokens, own.seconds, own.gain + gain, False, n, tuple(hand_overs)
    )


def rules(rule: Stop, prefix_length: int) -> tuple[Stop, ...]:
    """Stop rules under which the first part has at most `prefix_length` tokens; 0: there is only one part."""
    return (*(rule,) * (prefix_length - 1), END) if prefix_length else (rule,)


# -- a round of several requests: the tokens of all their drafts are bought in the order of their worth -----


@dataclass(slots=True)
class Wide:
    """A tree, or a chain with siblings, in place of a chain: chances of its first 1, 2, ... depths, and nodes
    of each.

    `call` are the seconds by which a call's start and each depth take longer, which a `trial` measures.
    """

    survival: Sequence[float]
    nodes: float
    call: tuple[float, float] = (0.0, 0.0)
    is_tree: bool = False
    trial: bool = False


@dataclass(slots=True)
class Share:
    """What one drafter could draft for one request of a batch; as an `Offer`, but for what all share.

    `trial` is the length of a draft that measures its drafter (0: none), and `reading` what this request
    alone would pay, in tokens. A chain may become a `wide` draft.
    """

    drafter: int
    survival: Sequence[float]
    trial: int
    reading: float
    wide: Wide | None = None


@dataclass(slots=True)
class Planner:
    """Chooses the drafts of a round together: calls and the pass are shared by all requests.

    Of all tokens those of the highest chance are bought, as many as fill the pass best; where rows are
    `padded` to the longest, a depth of all requests at once. A call of a drafter takes as long as its longest
    draft: a depth whose tokens gain less than it takes is given back, and a drafter whose call costs more
    than its drafts gain is left out. At last the chains become wide drafts, if these pay for the longer pass.

    A second is worth `rate` tokens; `widths` are the nodes of each drafter's tree for a token of its depth,
    `calls` each drafter's seconds of a call: its start, and each token of its longest draft.
    """

    passes: PassPrice
    rate: float
    batch: int
    padded: bool
    lengths: Sequence[int]
    widths: Sequence[float]
    calls: Sequence[tuple[float, float]]
    trees: PassPrice  # of passes over wide drafts
    width: int = 1  # of wide drafts
    token: float = 0.0  # tokens that one more in the pass costs
    size: float = 0.0  # tokens of the pass
    out: set[int] = field(default_factory=set)

    def plan(self, offers: Mapping[int, Sequence[Share]]) -> dict[int, Candidate]:
        """Return the best draft of each request that drafts, by the request."""
        while True:
            self.token, depths = 0.0, dict[int, int]()
            for _ in range(2):  # the second time with what a token of the pass costs, and with its depths
                shares = self._choose(offers)
                lengths = self._fill(shares, depths)
                depths = self._depths(shares, lengths)
            drafts = self._drafts(shares, lengths, depths)
            worst, most = -1, 0.0
            for i in {share.drafter for share in shares.values()} - self.out:
                mine = [one for one in drafts.values() if one.drafter == i]
                if any(one.trial for one in mine):
                    continue
                longest, gain = max((one.length for one in mine), default=0), sum(one.gain for one in mine)
                loss = self.rate * (self.calls[i][0] + self.calls[i][1] * longest) - gain if mine else 0.0
                if loss > most:
                    worst, most = i, loss
            if worst < 0:
                return self._widened(drafts, shares)
            self.out.add(worst)

    def _choose(self, offers: Mapping[int, Sequence[Share]]) -> dict[int, Share]:
        """Return the drafter of the highest gain for each request, where all of them share its calls."""
        best: dict[int, Share] = {}
        prices = [
            self.token * width + self.rate * each / self.batch
            for width, (_, each) in zip(self.widths, self.calls, strict=True)
        ]
        for request, shares in offers.items():
            highest = 0.0
            for share in shares:
                i = share.drafter
                if i in self.out:
                    continue
                gain, price = -share.reading, prices[i]
                for chance in share.survival:
                    if chance <= price:
                        break
                    gain += chance - price
                if gain > highest:
                    best[request], highest = share, gain
        return best

    def _fill(self, shares: Mapping[int, Share], depths: Mapping[int, int]) -> dict[int, int]:
        """Return the length of each draft that fills the pass best; sets what a token of it costs."""
        passes, batch = self.passes, self.batch
        room, plain = passes.room(batch), passes(batch)
        steps: list[tuple[float, float, list[int]]] = []  # chances, nodes, requests
        for request, share in shares.items():
            width, alone = self.widths[share.drafter], [request]
            most = min(share.trial, room) or depths.get(share.drafter)
            for k, chance in enumerate(share.survival[:most]):
                if not self.padded:
                    steps.append((chance, width, alone))
                elif k < len(steps):
                    gain, nodes, mates = steps[k]
                    steps[k] = gain + chance, max(nodes, batch * width), [*mates, request]
                else:
                    steps.append((chance - self.rate * self.calls[share.drafter][1], batch * width, alone))
        steps.sort(key=itemgetter(0), reverse=True)
        count, highest, gain, size, full = 0, 0.0, 0.0, float(batch), float(batch)
        for k, (chance, nodes, _) in enumerate(steps):
            gain, size = gain + chance, size + nodes
            if size > batch * (1 + room) and k:
                break
            net = gain - self.rate * (passes(size) - plain)
            if net > highest:
                count, highest, full = k + 1, net, size
        self.size, self.token = full, self.rate * (passes(full) - plain) / max(1.0, full - batch)
        lengths: dict[int, int] = {}
        for _, _, mates in steps[:count]:
            for request in mates:
                lengths[request] = lengths.get(request, 0) + 1
        return lengths

    def _depths(self, shares: Mapping[int, Share], lengths: Mapping[int, int]) -> dict[int, int]:
        """Return how deep each drafter drafts: its last tokens gain more than the pass and the call take."""
        depths, size = {}, self.size
        drafts: list[list[tuple[float, int]]] = [[] for _ in self.calls]
        for request, n in lengths.items():
            share = shares[request]
            columns = drafts[share.drafter]  # chances at each depth, and how many requests go so deep
            columns += [(0.0, 0)] * (n - len(columns))
            for k, chance in enumerate(share.survival[:n]):
                columns[k] = columns[k][0] + chance, columns[k][1] + 1
        for i, columns in enumerate(drafts):
            while columns:
                gain, count = columns[-1]
                less = size if self.padded else size - count * self.widths[i]
                if gain > self.rate * (self.calls[i][1] + self.passes(size) - self.passes(less)):
                    break
                columns.pop()
                size = less
            depths[i] = len(columns)
        return depths

    def _drafts(
        self, shares: Mapping[int, Share], lengths: Mapping[int, int], depths: Mapping[int, int]
    ) -> dict[int, Candidate]:
        drafts = {}
        for request, bought in lengths.items():
            share = shares[request]
            n = min(bought, depths[share.drafter])
            at = bisect_right(self.lengths, n)
            length = self.lengths[at - 1] if at else 0
            if share.trial and length < n and at < len(self.lengths):
                length = self.lengths[at]  # lengths may have gaps; only a trial shows what the next one costs
            tokens = sum(share.survival[:length])
            price = 0.0 if self.padded else self.token * self.widths[share.drafter] * length
            if (gain := tokens - price - share.reading) > 0.0:
                drafts[request] = Candidate(share.drafter, length, tokens, 0.0, gain, share.trial > 0)
        return drafts

    def _widened(self, drafts: dict[int, Candidate], shares: Mapping[int, Share]) -> dict[int, Candidate]:
        """Make all chains wide that can be, if they then gain more than they take.

        They may double the pass once more: shorter drafts have shown its slope.
        """
        wide = {
            request: one
            for request, draft in drafts.items()
            if (one := shares[request].wide) and not draft.trial and draft.length <= DEEPEST
        }
        if not wide:
            return drafts
        gains = {k: sum(one.survival[: drafts[k].length]) - drafts[k].tokens for k, one in wide.items()}
        nodes = {k: draft.length * (wide[k].nodes if k in wide else 1.0) for k, draft in drafts.items()}
        tokens = self._tokens(nodes)
        seconds = self.trees(tokens) - self.passes(self._tokens({k: one.length for k, one in drafts.items()}))
        calls: dict[int, float] = {}
        for request, one in wide.items():
            i, longer = drafts[request].drafter, one.call[0] + one.call[1] * drafts[request].length
            calls[i] = max(longer, calls.get(i, longer))
        gain = sum(gains.values()) - self.rate * (seconds + sum(calls.values()))
        if gain > 0.0 and tokens <= self.batch * (1 + 2 * self.passes.room(self.batch)):
            for request, one in wide.items():
                draft = drafts[request]
                draft.width, draft.is_tree, draft.trial = self.width, one.is_tree, one.trial
                draft.tokens += gains[request]
                draft.gain += gain / len(wide)
        return drafts

    def _tokens(self, nodes: Mapping[int, float]) -> float:
        """Return the tokens of a pass over so many drafted ones of each request."""
        every = self.batch * max(nodes.values()) if self.padded else sum(nodes.values())
        return self.batch + every

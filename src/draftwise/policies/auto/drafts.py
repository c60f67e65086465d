"""The drafts that a round may buy: expected tokens, less those that their seconds would write otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...core.arms import Arm, HandOver, Stop
from ...specs import cascade_parts, parse_drafter, takes_over
from .chances import CONTEXTS, MATCHES

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
WIDTH, DEEPEST = 4, 8  # of a tree: nodes for a token of its depth, at most, and its depth
END = Stop("confidence", 2.0)  # no probability is that high: the token is the last
TAKEN = 0  # the context in which a cascade is known by whether its second part took over
LEAST_MATCH = (0, *(int(n) + 1 for n in MATCHES))  # the shortest match of each context


@dataclass(slots=True)
class Candidate:
    """The best draft of one drafter in this round.

    `gain` is its expected accepted `tokens`, less the tokens that its `seconds` would write otherwise. A
    `trial` is made to measure what its drafter costs. `width` is above 1 for a tree. `prefix_length` is the
    most tokens of its first part, if it is composite, and `hand_overs` say when the second takes over.
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
        survival, start, each, extra = self.survival, self.start, self.each, self.extra
        most, whole = len(survival), sum(survival)
        best, highest, expected, at, tokens = 0, float("-inf"), 0.0, 0, 0.0
        for length in lengths:
            while at < length and at < most:
                tokens += survival[at]
                at += 1
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
    rooms = [length - at for length in lengths if max(n, at + 1) <= length <= most]
    costs = [rate * (extra[at + room] - extra[at]) for room in rooms]
    going_on = sum(offer.survival[1:n]) / right - rate * offer.each * (n - 1)
    hand_overs, longest, tokens, gain = list[HandOver](), n, 0.0, 0.0
    for match in range(1, CONTEXTS):
        sums = [0.0, *accumulate(tails(match))]
        values = [
            right * sums[min(room, len(sums) - 1)] - cost for room, cost in zip(rooms, costs, strict=True)
        ]
        best = max(range(len(values)), key=values.__getitem__, default=-1)
        if best < 0 or values[best] <= 0.0:
            if hand_overs:
                hand_overs.append(HandOver(LEAST_MATCH[match], 0, going_on < 0.0))
            continue
        room, accepted = rooms[best], sums[min(rooms[best], len(sums) - 1)]
        if not hand_overs:
            tokens, gain = chance * right * accepted, chance * values[best]
        hand_overs.append(HandOver(LEAST_MATCH[match], room, accepted - costs[best] > going_on))
        longest = max(longest, at + room)
    if not hand_overs:
        return None
    return Candidate(
        i, longest, own.tokens + tokens, own.seconds, own.gain + gain, False, n, tuple(hand_overs)
    )


def rules(rule: Stop, prefix_length: int) -> tuple[Stop, ...]:
    """Stop rules under which the first part has at most `prefix_length` tokens; 0: there is only one part."""
    return (*(rule,) * (prefix_length - 1), END) if prefix_length else (rule,)

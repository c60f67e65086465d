"""The drafts among which `auto` chooses: expected accepted tokens, less their seconds in tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from ...core.arms import Arm, HandOver, Stop
from ...specs import cascade_parts, parse_drafter, takes_over
from .acceptance import AcceptanceEstimate, Calibration

Price: TypeAlias = tuple[float, float, Sequence[float]]
"""Seconds of a draft: its start, each of its tokens, and what 0, 1, ... of them add to the target pass."""


@dataclass(slots=True)
class Candidate:
    """What one drafter is worth now, at its best length.

    `gain` is its expected accepted `tokens`, less the tokens that its `seconds` would write otherwise. A
    `trial` is a draft whose cost is not known yet: it is played to measure it. `prefix_length` is the most
    tokens of its first part, if it is composite, and `hand_overs` say when the second takes over.
    """

    drafter: int
    length: int
    tokens: float
    seconds: float
    gain: float
    trial: bool = False
    prefix_length: int = 0
    hand_overs: tuple[HandOver, ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a round went as it did: the price of a second in tokens, the arm, what each drafter was worth, and
    whether the guard had turned speculation off."""

    position: int
    rate: float
    arm: Arm
    candidates: tuple[Candidate, ...]
    paused: bool


def best_length(
    drafter: int, survival: Sequence[float], price: Price, rate: float, lengths: Sequence[int]
) -> Candidate:
    """The best of these draft lengths, where `survival` has the chances that the first 1, 2, ... tokens are
    accepted and `rate` is the tokens that a second is worth."""
    start, each, extra = price
    most, whole = len(survival), sum(survival)
    best, highest, expected, at, tokens = 0, -1.0, 0.0, 0, 0.0
    for length in lengths:
        while at < length and at < most:
            tokens += survival[at]
            at += 1
        gain = tokens - rate * (start + each * length + extra[length])
        if gain > highest:
            best, highest, expected = length, gain, tokens
        if length >= most or whole - tokens < highest - gain:  # a longer draft costs no less
            break
    return Candidate(drafter, best, expected, start + each * best + extra[best], highest)


def trial(i: int, most: int, curve: Sequence[float], lengths: Sequence[int], lost: float) -> Candidate:
    """A draft to measure what a drafter costs, made if it would be the best one at no cost but the `lost`
    tokens of a longer pass."""
    length = next((n for n in lengths if n >= most), lengths[-1])
    return Candidate(i, length, sum(curve[:length]), 0.0, sum(curve) - lost, trial=True)


NO_DRAFT = Candidate(-1, 0, 0.0, 0.0, 0.0)


def best_up_to(
    drafter: int,
    survival: Sequence[float],
    price: Price,
    rate: float,
    lengths: Sequence[int],
    *,
    nodes: float = 1.0,
) -> list[Candidate]:
    """The best draft within each of these `lengths`; a tree has so many `nodes` for a token of its depth."""
    start, each, extra = price
    sums, most = [0.0, *accumulate(survival)], len(survival)
    best, at, found = NO_DRAFT, 0, []
    for room in lengths:
        while at < len(lengths) and lengths[at] * nodes <= room and (at == 0 or lengths[at - 1] < most):
            length = lengths[at]
            tokens, seconds = sums[min(length, most)], start + each * length + extra[length]
            if tokens - rate * seconds > best.gain:
                best = Candidate(drafter, length, tokens, seconds, tokens - rate * seconds)
            at += 1
        found.append(best)
    return found


def steps(candidate: Candidate, lengths: Sequence[int]) -> list[Candidate]:
    """Return a draft of one length in a pass with room for each of these `lengths`."""
    return [candidate if candidate.length <= room else NO_DRAFT for room in lengths]


LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
MATCHES = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)  # the context of a match is the first that is not smaller
CONTEXTS = len(MATCHES) + 1
SUREST = 0.9  # the highest threshold of the stop rule
GAIN = attrgetter("gain")


Pricing: TypeAlias = Callable[[float, float, float, Sequence[float], Callable[[int], float]], Price]
"""Computes the price of a draft from measured seconds: of the start of a draft call; per drafted token; of
reading what the drafter has not read, spread over the rounds that are left; those that 0, 1, ... tokens add
to the target pass; and a function of the seconds of a target pass by its tokens."""
Pick: TypeAlias = Callable[[Sequence[Candidate]], Candidate | None]
"""Chooses the draft to make among those of all drafters, or None: no draft."""
Stopping: TypeAlias = Callable[[Calibration, float], Stop]
"""The stop rule of a model's draft: its calibration, and the least chance of acceptance that pays."""
Match: TypeAlias = Callable[[float], int]
"""The context of a lookup's hint, from 0 (no match) to `CONTEXTS` - 1."""
NewSkill: TypeAlias = Callable[[], AcceptanceEstimate]
"""Makes the acceptance model of one drafter."""


new_skill = partial(AcceptanceEstimate, CONTEXTS, LENGTHS[-1])
"""Counts that fade, and counts of each request that fade faster; options as those of `AcceptanceEstimate`."""


def measured(
    start: float, each: float, reading: float, extra: Sequence[float], plain: Callable[[int], float]
) -> Price:
    """Return the measured seconds, reading included."""
    return start + reading, each, extra


def best_gain(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the draft of the highest gain, if it is above 0."""
    best = max(candidates, key=GAIN, default=None)
    return best if best is not None and best.gain > 0.0 else None


def stop_by_gain(calibration: Calibration, least: float) -> Stop:
    """Draft on while the chance that all tokens so far and one more are accepted is above `least`."""
    return Stop("gain", min(least, SUREST), calibration)


def match_length(hint: float) -> int:
    """Return the class of a match by its length; 0 for none."""
    return bisect_left(MATCHES, hint)


END = Stop("confidence", 2.0)  # no probability is that high: the token is the last
SLOW = 10e-3  # seconds of a pass, from which weighing cascades takes a share of the time that does not count
TAKEN = 0  # the context in which a cascade is known by whether its second part took over
LEAST_MATCH = (0, *(int(n) + 1 for n in MATCHES))  # the shortest match of each class


def cascades(drafters: Sequence[str]) -> Mapping[int, int]:
    """Return which of these drafters are cascades with `match`, and which one begins their drafts."""
    found = {}
    for i, spec in enumerate(map(parse_drafter, drafters)):
        if takes_over(spec) and (first := cascade_parts(spec.path)[0]) in drafters:
            found[i] = drafters.index(first)
    return found


@dataclass(slots=True)
class Prefix:
    """The first part: the chances that its first 1, 2, ... tokens are accepted, and its price."""

    curve: Sequence[float]
    price: Price


Tails: TypeAlias = Callable[[int], Sequence[float]]
"""The chances of the second part's tokens, once all of the first are accepted, by the class of its match."""


def best_cascade(
    i: int, prefix: Prefix, taken: float, tails: Tails, rate: float, lengths: Sequence[int]
) -> list[Candidate]:
    """Return the model's best draft, and how many tokens a lookup adds to it with a match of each class.

    `taken` is the chance that it adds any, and `tails` the chances of its tokens by the class of its match.
    They cost nothing but a longer target pass. Inside the draft they must be worth more than what the model
    would add.
    """
    extra = prefix.price[2]
    most = len(extra) - 1
    curve, lengths = prefix.curve[:most], [length for length in lengths if length <= most]
    own = best_length(i, curve, prefix.price, rate, lengths) if lengths else NO_DRAFT
    if own.gain <= 0.0:
        return []
    n, right = own.length, curve[0]
    at = min(n, most // 2)
    rooms = [length - at for length in lengths if length >= max(n, at + 1)]
    costs = [rate * (extra[at + room] - extra[at]) for room in rooms]
    classes = [addition(tails(match), right, rooms, costs) for match in range(1, CONTEXTS)]
    first = next((k for k, one in enumerate(classes) if one.room), None)
    if first is None:
        return []
    going_on = sum(curve[1:n]) / right - rate * prefix.price[1] * (n - 1)
    hand_overs = tuple(
        HandOver(LEAST_MATCH[k + 1], one.room, one.tokens - one.cost > going_on)
        for k, one in enumerate(classes)
        if k >= first
    )
    longest = max(n, at + max(one.room for one in classes))
    tokens = own.tokens + taken * right * classes[first].tokens
    gain = own.gain + taken * classes[first].gain
    return [Candidate(i, longest, tokens, own.seconds, gain, prefix_length=n, hand_overs=hand_overs)]


class Addition(NamedTuple):
    """At most `room` tokens of the second part: how many are accepted once the first part is, what the longer
    pass costs in tokens, and the gain."""

    room: int = 0
    tokens: float = 0.0
    cost: float = 0.0
    gain: float = 0.0


NO_ADDITION = Addition()


def addition(tail: Sequence[float], right: float, rooms: Sequence[int], costs: Sequence[float]) -> Addition:
    """Return the best of these rooms, where the first part is accepted with the chance `right`.

    Rooms and their costs rise.
    """
    if not tail:
        return NO_ADDITION
    sums, most = [0.0, *accumulate(tail)], len(tail)
    best, highest = -1, 0.0
    for k, room in enumerate(rooms):
        gain = right * sums[min(room, most)] - costs[k]
        if gain > highest:
            best, highest = k, gain
        if room >= most or right * sums[most] - costs[k] <= highest:  # a longer one costs no less
            break
    if best < 0:
        return NO_ADDITION
    return Addition(rooms[best], sums[min(rooms[best], most)], costs[best], highest)


def rules(rule: Stop, prefix_length: int) -> tuple[Stop, ...]:
    """Stop rules under which the first part has at most `prefix_length` tokens; 0: there is only one part."""
    return (*(rule,) * (prefix_length - 1), END) if prefix_length else (rule,)


def windows(prefix_length: int, right: int, drafted: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return what a draft shows about both parts, of which the first has `prefix_length` tokens.

    The second part is known once all of the first is right.
    """
    begin = (1.0,) * min(right, prefix_length) + ((0.0,) if right < prefix_length else ())
    rest = (1.0,) * (right - prefix_length) + ((0.0,) if right < drafted else ())
    return begin, rest if right >= prefix_length else ()

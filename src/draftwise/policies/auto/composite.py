"""Composite drafts: a model begins, and a lookup takes over once the model's tokens have made a match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from ...core.arms import HandOver, Stop
from ...registry import parse
from ...registry.cascades import parts_of, takes_over
from .parts import CONTEXTS, MATCHES
from .worth import NOTHING, Price, Worth, best_length

END = Stop("confidence", 2.0)  # no probability is that high: the token is the last
SLOW = 10e-3  # seconds of a pass, from which weighing cascades takes a share of the time that does not count
TAKEN = 0  # the context in which a cascade is known by whether its second part took over
LEAST = (0, *(int(n) + 1 for n in MATCHES))  # the shortest match of each class


def cascades(drafters: Sequence[str]) -> Mapping[int, int]:
    """Which of these drafters are cascades with `match`, and which one begins their drafts."""
    found = {}
    for i, spec in enumerate(map(parse, drafters)):
        if takes_over(spec) and (first := parts_of(spec)[0]) in drafters:
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
) -> list[Worth]:
    """The model's best draft, and how many tokens a lookup adds to it with a match of each class.

    `taken` is the chance that it adds any, and `tails` the chances of its tokens by the class of its match.
    They cost nothing but a longer target pass. Inside the draft they must be worth more than what the model
    would add.
    """
    extra = prefix.price[2]
    most = len(extra) - 1
    curve, lengths = prefix.curve[:most], [length for length in lengths if length <= most]
    own = best_length(i, curve, prefix.price, rate, lengths) if lengths else NOTHING
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
        HandOver(LEAST[k + 1], one.room, one.tokens - one.cost > going_on)
        for k, one in enumerate(classes)
        if k >= first
    )
    longest = max(n, at + max(one.room for one in classes))
    tokens = own.tokens + taken * right * classes[first].tokens
    gain = own.gain + taken * classes[first].gain
    return [Worth(i, longest, tokens, own.seconds, gain, prefix_length=n, hand_overs=hand_overs)]


class Addition(NamedTuple):
    """At most `room` tokens of the second part: how many are accepted once the first part is, what the longer
    pass costs in tokens, and the gain."""

    room: int = 0
    tokens: float = 0.0
    cost: float = 0.0
    gain: float = 0.0


NONE = Addition()


def addition(tail: Sequence[float], right: float, rooms: Sequence[int], costs: Sequence[float]) -> Addition:
    """The best of these rooms, where the first part is accepted with the chance `right`.

    Rooms and their costs rise.
    """
    if not tail:
        return NONE
    sums, most = [0.0, *accumulate(tail)], len(tail)
    best, highest = -1, 0.0
    for k, room in enumerate(rooms):
        gain = right * sums[min(room, most)] - costs[k]
        if gain > highest:
            best, highest = k, gain
        if room >= most or right * sums[most] - costs[k] <= highest:  # a longer one costs no less
            break
    if best < 0:
        return NONE
    return Addition(rooms[best], sums[min(rooms[best], most)], costs[best], highest)


def rules(rule: Stop, prefix_length: int) -> tuple[Stop, ...]:
    """Stop rules under which the first part has at most `prefix_length` tokens; 0: there is only one part."""
    return (*(rule,) * (prefix_length - 1), END) if prefix_length else (rule,)


def windows(prefix_length: int, right: int, drafted: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What a draft shows about both parts, of which the first has `prefix_length` tokens.

    The second part is known once all of the first is right.
    """
    begin = (1.0,) * min(right, prefix_length) + ((0.0,) if right < prefix_length else ())
    rest = (1.0,) * (right - prefix_length) + ((0.0,) if right < drafted else ())
    return begin, rest if right >= prefix_length else ()

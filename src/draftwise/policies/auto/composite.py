"""Composite drafts: a model begins, and a lookup takes over once the model's tokens have made a match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from ... import registry
from ...core.arms import Gate, Stop
from .parts import CONTEXTS, MATCHES
from .worth import Price, Worth, best_length

END = Stop("confidence", 2.0)  # no probability is that high: the token is the last
TAKEN = 0  # the context in which a relay is known by whether its second part took over
LEAST = (0, *(int(n) + 1 for n in MATCHES))  # the shortest match of each class


def relays(drafters: Sequence[str]) -> Mapping[int, int]:
    """Which of these drafters are relays with `match`, and which one begins their drafts."""
    found = {}
    for i, name in enumerate(drafters):
        spec = registry.parse(name)
        first = spec.path.partition(">")[0].strip()
        if spec.name == "relay" and spec.options.get("match", "0") != "0" and first in drafters:
            found[i] = drafters.index(first)
    return found


@dataclass(slots=True)
class Head:
    """The first part: the chances that its first 1, 2, ... tokens are accepted, and its price."""

    curve: Sequence[float]
    price: Price


Tails: TypeAlias = Callable[[int], Sequence[float]]
"""The chances of the second part's tokens, once all of the first are accepted, by the class of its match."""


def best_relay(
    i: int, head: Head, taken: float, tails: Tails, rate: float, lengths: Sequence[int]
) -> list[Worth]:
    """The model's best draft, and how many tokens a lookup adds to it with a match of each class.

    `taken` is the chance that it adds any, and `tails` the chances of its tokens by the class of its match.
    They cost nothing but a longer target pass. Inside the draft they must be worth more than what the model
    would add.
    """
    extra = head.price[2]
    most = len(extra) - 1
    curve = head.curve[:most]
    own = best_length(i, curve, head.price, rate, lengths)
    if own.gain <= 0.0:
        return []
    n, right = own.length, curve[0]
    at = min(n, most // 2)
    rooms = [length - at for length in lengths if max(n, at + 1) <= length <= most]
    going_on = sum(curve[1:n]) / right - rate * head.price[1] * (n - 1)
    gates, longest, worth, tokens = list[Gate](), n, 0.0, 0.0
    for match in range(1, CONTEXTS):
        sums = [0.0, *accumulate(tails(match))]
        gain, more, room, seconds = 0.0, 0.0, 0, 0.0
        for some in rooms:
            all_, cost = sums[min(some, len(sums) - 1)], rate * (extra[at + some] - extra[at])
            if right * all_ - cost > gain:
                gain, more, room, seconds = right * all_ - cost, all_, some, cost
        if room and not gates:
            worth, tokens = gain, right * more
        if room or gates:
            gates.append(Gate(LEAST[match], room, more - seconds > going_on))
            longest = max(longest, at + room)
    if not gates:
        return []
    tokens, gain = own.tokens + taken * tokens, own.gain + taken * worth
    return [Worth(i, longest, tokens, own.seconds, gain, head=n, gates=tuple(gates))]


def rules(rule: Stop, head: int) -> tuple[Stop, ...]:
    """Stop rules under which the first part has at most `head` tokens; with 0 there is only one part."""
    return (*(rule,) * (head - 1), END) if head else (rule,)


def windows(head: int, right: int, drafted: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What a draft shows about both parts, where the first `head` of its tokens are the first part's.

    The second part is known once all of the first is right.
    """
    begin = (1.0,) * min(right, head) + ((0.0,) if right < head else ())
    rest = (1.0,) * (right - head) + ((0.0,) if right < drafted else ())
    return begin, rest if right >= head else ()

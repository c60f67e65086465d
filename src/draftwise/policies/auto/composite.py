"""Composite drafts: a model begins and a lookup adds the rest; each part has chances and costs of its own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ... import registry
from ...core.arms import Stop
from ...core.drafts import Signals
from ...core.stops import factor, stop
from .worth import Price, Worth, best_length

END = Stop("confidence", 2.0)  # no probability is that high: the token is the last
HEADS = (1, 2, 3, 4, 6, 8)  # tokens of the model at most


def relays(drafters: Sequence[str]) -> Mapping[int, int]:
    """Which of these drafters are relays with `rest`, and which one begins their drafts."""
    found = {}
    for i, name in enumerate(drafters):
        spec = registry.parse(name)
        first = spec.path.partition(">")[0].strip()
        if (
            spec.name == "relay"
            and spec.options.get("rest", "").lower() in registry.YES
            and first in drafters
        ):
            found[i] = drafters.index(first)
    return found


@dataclass(slots=True)
class Head:
    """The first part: the chances that its first 1, 2, ... tokens are accepted, and its price."""

    curve: Sequence[float]
    price: Price


Tails: TypeAlias = Callable[[int], Sequence[float]]
"""The chances of the second part's tokens once all of the first are accepted, by the kind of the first."""


def kind(head: int) -> int:
    """The context of a second part: how long the first is."""
    return bisect_left(HEADS, head)


def best_split(i: int, head: Head, tails: Tails, rate: float, lengths: Sequence[int]) -> list[Worth]:
    """The best composite draft of relay `i`, if there is any: the tokens of its first part, and in all.

    The second part costs nothing but a longer target pass.
    """
    start, each, extra = head.price
    found: list[Worth] = []
    for n in HEADS:
        longer = [length for length in lengths if n < length < len(extra)]
        if n > len(head.curve) or not longer:
            break
        sure = head.curve[n - 1]
        curve = [*head.curve[:n], *(sure * chance for chance in tails(kind(n)))]
        found.append(best_length(i, curve, (start + each * n, 0.0, extra), rate, longer))
        found[-1].head = n
    return [max(found, key=lambda worth: worth.gain)] if found else []


def rules(rule: Stop, head: int) -> tuple[Stop, ...]:
    """Stop rules under which the first part has at most `head` tokens; with 0 there is only one part."""
    return (*(rule,) * (head - 1), END) if head else (rule,)


def begun(stops: Sequence[Stop], signals: Sequence[Signals]) -> int:
    """How many tokens of a draft are the first part's: up to the one that its stop rule ended it at."""
    joint = 1.0
    for k, now in enumerate(signals):
        rule = stops[min(k, len(stops) - 1)]
        joint *= factor(rule, now, position=k)
        if rule.rule != "never" and stop(rule, now, position=k, previous=None, joint=joint):
            return k + 1
    return len(signals)


def windows(head: int, right: int, asked: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What a draft shows about both parts, where the first `head` of `asked` tokens are the first part's.

    The second part is known once all of the first is right; a token that it did not have is a miss.
    """
    begin = (1.0,) * min(right, head) + ((0.0,) if right < head else ())
    more = right - head
    rest = (1.0,) * more + ((0.0,) if right < asked else ()) if more >= 0 else ()
    return begin, rest

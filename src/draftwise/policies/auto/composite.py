"""Composite drafts: a model begins and a lookup adds the rest, each part with chances and costs of its own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ... import registry
from ...core.arms import Stop
from ...core.drafts import Signals
from ...core.stops import factor, stop
from .worth import Worth, best_length

END = Stop("confidence", 2.0)  # no probability is that high: the token is the last
HEADS = (1, 2, 3, 4, 6, 8)  # tokens of the model at most


def relays(drafters: Sequence[str]) -> Mapping[int, int]:
    """Which of these drafters are relays with `rest`, and which one begins their drafts."""
    found = {}
    for i, name in enumerate(drafters):
        spec = registry.parse(name)
        first = spec.path.partition(">")[0].strip()
        if spec.name == "relay" and spec.options.get("rest", "").lower() in registry.YES and first in drafters:
            found[i] = drafters.index(first)
    return found


@dataclass(slots=True)
class Head:
    """The first part: its chances, the seconds of its start and of each token, as far as they are known."""

    curve: Sequence[float]
    start: float
    each: float


Tail: TypeAlias = Callable[[int], Sequence[float]]


def kind(head: int) -> int:
    """The context of a second part: how long the first is."""
    return bisect_left(HEADS, head)


def best_split(
    i: int, head: Head, tails: Tail, extra: Sequence[float], rate: float, lengths: Sequence[int]
) -> Worth | None:
    """The best composite draft of relay `i`: the tokens of its first part, and its length in all.

    `tail` has the chances of the second part's tokens once all of the first are accepted; they cost nothing
    but a longer target pass, whose additional seconds are `extra`.
    """
    found: list[Worth] = []
    for n in HEADS[: len(head.curve)]:
        if n > len(head.curve):
            break
        curve = [*head.curve[:n], *(head.curve[n - 1] * chance for chance in tails(kind(n)))]
        longer = [length for length in lengths if n < length < len(extra)]
        if longer:
            price = (head.start + head.each * n, 0.0, extra)
            found.append(best_length(i, curve, price, rate, longer))
            found[-1].head = n
    return max(found, key=lambda worth: worth.gain, default=None)


def rules(rule: Stop, head: int) -> tuple[Stop, ...]:
    """Stop rules under which the first part has at most `head` tokens."""
    return (*(rule,) * (head - 1), END)


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

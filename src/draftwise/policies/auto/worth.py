"""What a draft is worth: expected accepted tokens, less its seconds in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from ...core.arms import Arm, HandOver

Price: TypeAlias = tuple[float, float, Sequence[float]]
"""Seconds of a draft: its start, each of its tokens, and what 0, 1, ... of them add to the target pass."""


@dataclass(slots=True)
class Worth:
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
    worths: tuple[Worth, ...]
    paused: bool


def best_length(
    drafter: int, survival: Sequence[float], price: Price, rate: float, lengths: Sequence[int]
) -> Worth:
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
    return Worth(drafter, best, expected, start + each * best + extra[best], highest)


def trial(i: int, most: int, curve: Sequence[float], lengths: Sequence[int], lost: float) -> Worth:
    """A draft to measure what a drafter costs, made if it would be the best one at no cost but the `lost`
    tokens of a longer pass."""
    length = next((n for n in lengths if n >= most), lengths[-1])
    return Worth(i, length, sum(curve[:length]), 0.0, sum(curve) - lost, trial=True)


NOTHING = Worth(-1, 0, 0.0, 0.0, 0.0)


def climb(
    drafter: int,
    survival: Sequence[float],
    price: Price,
    rate: float,
    lengths: Sequence[int],
    *,
    nodes: float = 1.0,
) -> list[Worth]:
    """The best draft within each of these `lengths`; a tree has so many `nodes` for a token of its depth."""
    start, each, extra = price
    sums, most = [0.0, *accumulate(survival)], len(survival)
    best, at, found = NOTHING, 0, []
    for room in lengths:
        while at < len(lengths) and lengths[at] * nodes <= room and (at == 0 or lengths[at - 1] < most):
            length = lengths[at]
            tokens, seconds = sums[min(length, most)], start + each * length + extra[length]
            if tokens - rate * seconds > best.gain:
                best = Worth(drafter, length, tokens, seconds, tokens - rate * seconds)
            at += 1
        found.append(best)
    return found


def steps(worth: Worth, lengths: Sequence[int]) -> list[Worth]:
    """A draft of one length in a pass with room for each of these `lengths`."""
    return [worth if worth.length <= room else NOTHING for room in lengths]

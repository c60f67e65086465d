"""The time of simple rules: every fixed drafter and length, and drafting exactly what will be accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .costs import Costs
from .oracle import confirmed, reach
from .stage import Lines, Stage

Arm = tuple[str, int]
NONE: Arm = ("none", 0)
Ask = Callable[[int], tuple[int, int]]
"""From a position: the number of drafted tokens (-1 without a draft), and the number accepted."""


def fixed(stage: Stage, costs: Costs) -> dict[Arm, float]:
    """Seconds for one text with each drafter and length, and without any drafter."""
    one = stage.recording
    found = {NONE: one.committed * costs.target(1)}
    for name, lines in stage.lines.items():
        right: list[list[int]] = confirmed(stage, lines).tolist()
        for length in range(1, len(right) + 1):
            ask = partial(_up_to, lines, right, one.budget, length)
            found[name, length] = walk(stage, name, ask, costs)
    return found


def exactly(stage: Stage, costs: Costs) -> dict[str, float]:
    """Seconds with each drafter if it always drafted exactly what will be accepted.

    This is DISCO's oracle (arXiv 2405.04304), within the lengths of the trace. It is not the minimum: a token
    may be accepted and yet cost more than it saves.
    """
    found = {}
    for name, lines in stage.lines.items():
        ask = partial(_just, reach(stage, lines)[0])
        found[name] = walk(stage, name, ask, costs)
    return found


def _up_to(
    lines: Lines, right: Sequence[Sequence[int]], budget: int, length: int, at: int
) -> tuple[int, int]:
    asked = min(length, budget - at - 1)
    return (lines.span(at, asked)[1], right[asked - 1][at]) if asked else (-1, 0)


def _just(right: Sequence[int], at: int) -> tuple[int, int]:
    return (right[at], right[at]) if right[at] else (-1, 0)


def walk(stage: Stage, name: str, ask: Ask, costs: Costs) -> float:
    """Seconds for one text if `name` drafts according to `ask`."""
    mine, prompt = costs.of(name), stage.recording.prompt.size
    at, read, seconds = 0, 0, 0.0
    while at < stage.recording.committed:
        drafted, accepted = ask(at)
        seconds += costs.target(1 + max(drafted, 0))
        if drafted >= 0:
            seconds += mine.draft(drafted) + mine.catch_up * (prompt + at - read)
            read = prompt + at + accepted + 1
        at += accepted + 1
    return seconds

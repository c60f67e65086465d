"""The minimum time for a text, over all choices of drafter and length, and the time of simple rules.

A shortest path over the positions of the text. From each position one may draft nothing, or with any drafter
as many tokens as match the text, or a useless draft that lets the drafter catch up. It is also exact when a
drafter must first read what others wrote: each token costs its reading by every drafter that will be used
later. So the state is the position and the set of those drafters, and the path is searched from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from .costs import Costs
from .state import RecordedDrafter, ReplayState

Whole: TypeAlias = NDArray[np.int64]
Real: TypeAlias = NDArray[np.float64]
MOST_BEHIND = 12  # drafters with catch-up costs: 2^12 sets at each position
Arm = tuple[str, int]
NONE: Arm = ("none", 0)
Drafting = Callable[[int], tuple[int, int]]
"""From a position: the number of drafted tokens (-1 without a draft), and the number accepted."""


@dataclass(frozen=True, slots=True)
class Step:
    """One round of a path: its position, drafter ("none" without a draft), and number of tokens."""

    position: int
    drafter: str
    drafted: int


@dataclass(frozen=True, slots=True)
class Best:
    """The minimum seconds for a text, and the rounds of an optimal path."""

    seconds: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A possible round: drafter, number of tokens, positions advanced, and cost."""

    drafter: str
    drafted: int
    advance: int
    seconds: float


def best(state: ReplayState, costs: Costs) -> Best:
    """Return the minimum time for one text, with an optimal path."""
    readers, end = Readers(state, costs), state.recording.committed
    reaches = {name: reach(state, drafter) for name, drafter in state.drafters.items()}
    seconds, choices = np.zeros((end + 1, readers.size)), list[tuple[list[Move], Whole]]()
    for at in range(end - 1, -1, -1):
        moves = list(list_moves(at, end, reaches, costs))
        rests = [readers.after(move.drafter, move.advance, seconds[at + move.advance]) for move in moves]
        table = np.stack([move.seconds + rest for move, rest in zip(moves, rests, strict=True)])
        fastest = table.argmin(0)
        seconds[at] = np.take_along_axis(table, fastest[None], 0)[0]
        choices.append((moves, fastest))
    totals = seconds[0] + readers.backlog(state.recording.prompt.size)
    start = int(totals.argmin())
    return Best(float(totals[start]), tuple(_path(readers, seconds, choices[::-1], start)))


def _path(
    readers: Readers, seconds: Real, choices: Sequence[tuple[list[Move], Whole]], used: int
) -> Iterator[Step]:
    """Yield the rounds of an optimal path; `used` is the set of drafters that are used from its start on."""
    at = 0
    while at < len(choices):
        moves, fastest = choices[at]
        move = moves[fastest[used]]
        yield Step(at, move.drafter, move.drafted)
        at += move.advance
        without = used & ~readers.bit.get(move.drafter, 0)
        if seconds[at][without] < seconds[at][used]:
            used = without


def best_composite(state: ReplayState, costs: Costs) -> float:
    """Return the minimum seconds for one text over all composite drafts of at most the trace's length.

    One draft may have parts of several drafters. A part that continues a draft costs what it costs alone; a
    drafter that must catch up reads what the parts before it drafted, at its price per token of the text. It
    is the same shortest path with one more number in its state: how many tokens the draft of this round has
    so far. From each state one may end the draft, which costs the target pass, or add as many tokens of any
    drafter as match the text.
    """
    end = state.recording.committed
    longest = max((drafter.drafts.start.shape[1] for drafter in state.drafters.values()), default=0)
    readers = Readers(state, costs)
    reaches = {name: reach(state, drafter) for name, drafter in state.drafters.items()}
    passes = np.array([costs.target(1 + k) for k in range(longest + 1)])
    values: Real = np.full((end + 1, longest + 1, readers.size), np.inf)
    values[end, 0] = 0.0
    for at in range(end - 1, -1, -1):
        here = passes[:, None] + readers.catch_up + values[at + 1, 0]  # the draft ends here
        for name, (most, least) in reaches.items():
            prices = costs.of(name)
            for n in range(1, min(most[at], end - at - 1, longest) + 1):
                seconds = prices.draft(n) + readers.after(name, n, values[at + n, n:])
                here[: longest + 1 - n] = np.minimum(here[: longest + 1 - n], seconds)
            if prices.catch_up and (wrong := least[at]) >= 0:  # so that the drafter catches up
                useless = prices.draft(wrong) + costs.target(1 + wrong)
                here[0] = np.minimum(here[0], useless + readers.after(name, 1, values[at + 1, :1])[0])
        values[at] = here
    return float((values[0, 0] + readers.backlog(state.recording.prompt.size)).min())


def confirmed(state: ReplayState, drafter: RecordedDrafter) -> Whole:
    """Return how many tokens of the draft match the text, by requested length and position: (length, n)."""
    a, n = drafter.drafts, state.recording.committed
    lengths = a.start.shape[1]
    text = np.array([*state.text, *[-1] * (lengths + 1)])
    counts = np.zeros((lengths, n), np.int64)
    for column in range(lengths if a.tokens.size else 0):
        steps = np.arange(column + 1)
        where = np.minimum(a.start[:, column, None] + steps, a.tokens.size - 1)
        match = a.tokens[where] == text[np.arange(n)[:, None] + steps]
        match &= steps < a.count[:, column, None]
        counts[column] = np.logical_and.accumulate(match, 1).sum(1)
    return counts


def reach(state: ReplayState, drafter: RecordedDrafter) -> tuple[list[int], list[int]]:
    """Return for each position the most tokens that a draft gets right, over the possible lengths.

    And the shortest useless draft, 0 or 1 tokens, or -1 if every draft gets a token right.
    """
    right, recording = confirmed(state, drafter), state.recording
    lengths, at = np.arange(1, len(right) + 1)[:, None], np.arange(recording.committed)
    allowed = lengths <= recording.budget - at - 1
    least = np.where(allowed & (right == 0), np.minimum(drafter.drafts.count.T, 1), 2).min(0)
    return np.where(allowed, right, 0).max(0).tolist(), np.where(least < 2, least, -1).tolist()


def list_moves(
    at: int, end: int, reaches: Mapping[str, tuple[Sequence[int], Sequence[int]]], costs: Costs
) -> Iterator[Move]:
    """Yield the rounds that are possible at a position."""
    yield Move("none", 0, 1, costs.target(1))
    for name, (most, least) in reaches.items():
        prices = costs.of(name)
        for drafted in range(1, min(most[at], end - at - 1) + 1):
            yield Move(name, drafted, drafted + 1, prices.draft(drafted) + costs.target(1 + drafted))
        if prices.catch_up and (wrong := least[at]) >= 0:  # so that the drafter catches up
            yield Move(name, wrong, 1, prices.draft(wrong) + costs.target(1 + wrong))


class Readers:
    """Sets of the drafters that will be used later, as bits, and their cost of reading a token.

    Raises:
        UserError: more than 12 drafters have costs for catching up.
    """

    def __init__(self, state: ReplayState, costs: Costs) -> None:
        behind = [name for name in state.drafters if costs.of(name).catch_up]
        if len(behind) > MOST_BEHIND:
            raise UserError(
                f"{len(behind)} drafters with catch_up costs, of which the oracle can follow {MOST_BEHIND}: "
                "record fewer drafters, or give costs without catch_up"
            )
        self.size = 1 << len(behind)
        self.bit = {name: 1 << i for i, name in enumerate(behind)}
        self.numbers = np.arange(self.size)
        self.each = {name: costs.of(name).catch_up for name in behind}
        self.catch_up = self.backlog(1)

    def backlog(self, length: int) -> Real:
        """Return seconds in which each set's drafters read `length` tokens."""
        seconds = np.zeros(self.size)
        for name, bit in self.bit.items():
            seconds += np.where(self.numbers & bit, self.each[name] * length, 0.0)
        return seconds

    def after(self, drafter: str, advance: int, seconds: Real) -> Real:
        """Return seconds after so many tokens and for reading them, for each set used from before them on.

        `drafter` reads them as it drafts. `seconds` are those after them, sets in the last axis.
        """
        bit = self.bit.get(drafter, 0)
        if not bit:
            return advance * self.catch_up + seconds
        without = self.numbers & ~bit
        totals: Real = advance * self.catch_up[without] + np.minimum(seconds, seconds[..., without])
        totals[..., (self.numbers & bit) == 0] = np.inf
        return totals


# -- simple rules -----------------------------------------------------------------------------------------


def fixed(state: ReplayState, costs: Costs) -> dict[Arm, float]:
    """Return seconds for one text with each drafter and length, and without any drafter."""
    recording = state.recording
    seconds = {NONE: recording.committed * costs.target(1)}
    for name, drafter in state.drafters.items():
        right: list[list[int]] = confirmed(state, drafter).tolist()
        for length in range(1, len(right) + 1):
            drafting = partial(_up_to, drafter, right, recording.budget, length)
            seconds[name, length] = walk(state, name, drafting, costs)
    return seconds


def exactly(state: ReplayState, costs: Costs) -> dict[str, float]:
    """Return seconds with each drafter if it always drafted exactly what will be accepted.

    This is DISCO's oracle (arXiv 2405.04304), within the lengths of the trace. It is not the minimum: a token
    may be accepted and yet cost more than it saves.
    """
    seconds = {}
    for name, drafter in state.drafters.items():
        counts = [(n, n) if n else (-1, 0) for n in reach(state, drafter)[0]]
        seconds[name] = walk(state, name, counts.__getitem__, costs)
    return seconds


def _up_to(
    drafter: RecordedDrafter, right: Sequence[Sequence[int]], budget: int, length: int, at: int
) -> tuple[int, int]:
    n = min(length, budget - at - 1)
    return (drafter.span(at, n)[1], right[n - 1][at]) if n else (-1, 0)


def walk(state: ReplayState, name: str, drafting: Drafting, costs: Costs) -> float:
    """Return seconds for one text if `name` drafts according to `drafting`."""
    prices, prompt = costs.of(name), state.recording.prompt.size
    at, read, seconds = 0, 0, 0.0
    while at < state.recording.committed:
        drafted, accepted = drafting(at)
        seconds += costs.target(1 + max(drafted, 0))
        if drafted >= 0:
            seconds += prices.draft(drafted) + prices.catch_up * (prompt + at - read)
            read = prompt + at + accepted + 1
        at += accepted + 1
    return seconds

"""The minimum time for a text, over all choices of drafter and length.

A shortest path over the positions of the text. From each position one may draft nothing, or with any drafter
as many tokens as match the text, or a useless draft that lets the drafter catch up. It is also exact when a
drafter must first read what others wrote: each token costs its reading by every drafter that will be used
later. So the state is the position and the set of those drafters, and the path is searched from the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from .costs import Costs
from .stage import Lines, Stage

Whole: TypeAlias = NDArray[np.int64]
Real: TypeAlias = NDArray[np.float64]
MOST_BEHIND = 12  # drafters with catch-up costs: 2^12 sets at each position


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
class _Move:
    """A possible round: drafter, number of tokens, positions advanced, and cost."""

    drafter: str
    drafted: int
    far: int
    seconds: float


def best(stage: Stage, costs: Costs) -> Best:
    """The minimum time for one text, with an optimal path.

    Raises:
        UserError: more than 12 drafters have costs for catching up.
    """
    return Remaining(stage, costs).best()


class Remaining:
    """The minimum seconds from every position to the end of the text, by what each drafter has read.

    Raises:
        UserError: more than 12 drafters have costs for catching up.
    """

    def __init__(self, stage: Stage, costs: Costs) -> None:
        behind = [name for name in stage.lines if costs.of(name).catch_up]
        if len(behind) > MOST_BEHIND:
            raise UserError(
                f"{len(behind)} drafters with catch_up costs, of which the oracle can follow {MOST_BEHIND}: "
                "record fewer drafters, or give costs without catch_up"
            )
        self.sets, self.prompt = Sets(behind, costs), stage.recording.prompt.size
        end = stage.recording.committed
        self._values = np.zeros((end + 1, self.sets.size))
        self._choices: list[tuple[list[_Move], Whole]] = []
        far = {name: reach(stage, lines) for name, lines in stage.lines.items()}
        for at in range(end - 1, -1, -1):
            moves = list(_moves(at, end, far, costs))
            table = np.stack([self.sets.worth(move, self._values[at + move.far]) for move in moves])
            chosen = table.argmin(0)
            self._values[at] = np.take_along_axis(table, chosen[None], 0)[0]
            self._choices.append((moves, chosen))
        self._choices.reverse()

    def __call__(self, at: int, read: Mapping[str, int]) -> float:
        """Seconds from position `at` on, given how many tokens (prompt included) each drafter has read."""
        return float((self._values[at] + self.sets.backlog(self.prompt + at, read)).min())

    def best(self) -> Best:
        """The minimum time for the whole text, with an optimal path."""
        totals = self._values[0] + self.sets.backlog(self.prompt, {})
        start = int(totals.argmin())
        return Best(float(totals[start]), tuple(_path(self._choices, self._values, self.sets, start)))


def confirmed(stage: Stage, lines: Lines) -> Whole:
    """How many tokens of the draft match the text, by requested length and position, shape (length, n)."""
    a, n = lines.answers, stage.recording.committed
    lengths = a.start.shape[1]
    text = np.array([*stage.text, *[-1] * (lengths + 1)])
    if not a.tokens.size:
        return np.zeros((lengths, n), np.int64)
    found = np.zeros((lengths, n), np.int64)
    for column in range(lengths):
        steps = np.arange(column + 1)
        where = np.minimum(a.start[:, column, None] + steps, a.tokens.size - 1)
        right = a.tokens[where] == text[np.arange(n)[:, None] + steps]
        right &= steps < a.count[:, column, None]
        found[column] = np.logical_and.accumulate(right, 1).sum(1)
    return found


def reach(stage: Stage, lines: Lines) -> tuple[list[int], list[int]]:
    """For each position the most tokens that a draft gets right, over the possible lengths.

    And the shortest useless draft, 0 or 1 tokens, or -1 if every draft gets a token right.
    """
    right, one = confirmed(stage, lines), stage.recording
    asked, at = np.arange(1, len(right) + 1)[:, None], np.arange(one.committed)
    may = asked <= one.budget - at - 1
    least = np.where(may & (right == 0), np.minimum(lines.answers.count.T, 1), 2).min(0)
    return np.where(may, right, 0).max(0).tolist(), np.where(least < 2, least, -1).tolist()


def _moves(
    at: int, end: int, far: Mapping[str, tuple[Sequence[int], Sequence[int]]], costs: Costs
) -> Iterator[_Move]:
    yield _Move("none", 0, 1, costs.target(1))
    for name, (most, least) in far.items():
        mine = costs.of(name)
        for drafted in range(1, min(most[at], end - at - 1) + 1):
            yield _Move(name, drafted, drafted + 1, mine.draft(drafted) + costs.target(1 + drafted))
        if mine.catch_up and (wrong := least[at]) >= 0:  # so that the drafter catches up
            yield _Move(name, wrong, 1, mine.draft(wrong) + costs.target(1 + wrong))


class Sets:
    """Sets of the drafters that will be used later, as bits, and their cost of reading a token."""

    def __init__(self, behind: Sequence[str], costs: Costs) -> None:
        self.size = 1 << len(behind)
        self.bit = {name: 1 << i for i, name in enumerate(behind)}
        self.numbers = np.arange(self.size)
        self.each = {name: costs.of(name).catch_up for name in behind}
        self.catch_up = self.backlog(1, {})

    def backlog(self, length: int, read: Mapping[str, int]) -> Real:
        """Seconds in which the drafters of each set read the unread part of the first `length` tokens."""
        seconds = np.zeros(self.size)
        for name, bit in self.bit.items():
            seconds += np.where(self.numbers & bit, self.each[name] * (length - read.get(name, 0)), 0.0)
        return seconds

    def worth(self, move: _Move, after: Real) -> Real:
        """Seconds to the end with this move, for each set of drafters that are used from here on."""
        return move.seconds + self.passed(move.drafter, move.far, after)

    def passed(self, drafter: str, far: int, after: Real) -> Real:
        """Seconds after so many tokens and for reading them, for each set that is used from before them on.

        `drafter` reads them as it drafts. `after` are the seconds after them, sets in the last axis.
        """
        bit = self.bit.get(drafter, 0)
        if not bit:
            return far * self.catch_up + after
        without = self.numbers & ~bit
        worth: Real = far * self.catch_up[without] + np.minimum(after, after[..., without])
        worth[..., (self.numbers & bit) == 0] = np.inf
        return worth


def _path(
    choices: Sequence[tuple[list[_Move], Whole]], values: Real, sets: Sets, at_set: int
) -> Iterator[Step]:
    at = 0
    while at < len(choices):
        moves, chosen = choices[at]
        move = moves[chosen[at_set]]
        yield Step(at, move.drafter, move.drafted)
        at += move.far
        without = at_set & ~sets.bit.get(move.drafter, 0)
        if values[at][without] < values[at][at_set]:
            at_set = without

"""The rounds of a stop rule along a recorded text, and their cost: numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftwise.measure.trace import Costs
from draftwise.policies.adaptive import HeuristicLength
from draftwise.policies.classifiers.stopping import Disco
from studies.speed.disco.record import Features, Recorded

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """A text with the classifier's probabilities in place of its inputs."""

    on: Real
    off: Real
    accepted: NDArray[np.bool_]
    budget: int


@dataclass
class Rounds:
    """Tokens drafted and accepted in each round of a text."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def seconds(self, costs: Costs, drafter: str) -> float:
        """Seconds of all rounds; an empty draft costs nothing."""
        mine = costs.of(drafter)
        return sum(costs.target(1 + n) + (mine.draft(n) if n else 0.0) for n in self.drafted)


def scored(one: Recorded, scorer: Disco) -> Scored:
    """Let the classifier look at all tokens at once."""
    return Scored(chances(scorer, one.on), chances(scorer, one.off), one.accepted, one.budget)


def chances(scorer: Disco, x: Features) -> Real:
    """`scorer.score` of many tokens, shape (...) from (..., 12)."""
    hidden = np.maximum(x @ scorer.hidden_weight.T + scorer.hidden_bias, 0.0)
    odds: Real = (hidden @ scorer.out_weight[0] + scorer.out_bias[0]).astype(np.float64)
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


Rule = Callable[[Scored, int, int], tuple[int, int]]
"""Of a text, a position and the most that may be drafted: tokens drafted and accepted."""


def walk(text: Scored, rule: Rule) -> Rounds:
    """Every round of a text."""
    at, found = 0, Rounds()
    while at < len(text.accepted):
        drafted, accepted = rule(text, at, text.budget - at - 1)
        found.drafted.append(drafted)
        found.accepted.append(accepted)
        at += accepted + 1
    return found


def stopping(threshold: float, longest: int) -> Rule:
    """Draft until a probability is below the threshold, that token included (DISCO); 0 is a fixed length."""

    def rule(text: Scored, at: int, room: int) -> tuple[int, int]:
        most = min(longest, room)
        right = run(text.accepted, at, most)
        on = text.on[at : at + min(most, right + 1)]
        wrong = text.off[at + right][: most - len(on)] if len(on) < most else on[:0]
        low = np.flatnonzero(np.concatenate((on, wrong)) < threshold)
        drafted = int(low[0]) + 1 if len(low) else most
        return drafted, min(right, drafted)

    return rule


def run(accepted: NDArray[np.bool_], at: int, most: int) -> int:
    """How many of the next `most` tokens would be accepted one after the other."""
    wrong = np.flatnonzero(~accepted[at : at + most])
    return int(wrong[0]) if len(wrong) else len(accepted[at : at + most])


def oracle(longest: int) -> Rule:
    """Draft exactly the tokens that will be accepted (DISCO's oracle)."""

    def rule(text: Scored, at: int, room: int) -> tuple[int, int]:
        right = run(text.accepted, at, min(longest, room))
        return right, right

    return rule


def heuristic(texts: Sequence[Scored], start: int, longest: int) -> list[Rounds]:
    """Transformers' schedule, kept from text to text: two longer after a whole draft, else one shorter."""
    state, found = HeuristicLength(start), []

    def rule(text: Scored, at: int, room: int) -> tuple[int, int]:
        drafted, accepted = stopping(0.0, state.length)(text, at, room)
        state.update(drafted=drafted, accepted=accepted)
        state.length = min(state.length, longest)
        return drafted, accepted

    for text in texts:
        found.append(walk(text, rule))
    return found


def predicted(alpha: float, length: int, c: float) -> float:
    """Leviathan et al. 2023, Theorem 3.8: the improvement factor if tokens were right independently."""
    if alpha >= 1.0:
        return (length + 1) / (length * c + 1)
    return (1 - alpha ** (length + 1)) / ((1 - alpha) * (length * c + 1))


def by_index(lengths: Sequence[Sequence[int]], parts: int) -> list[NDArray[np.int64]]:
    """Draft lengths of all texts, by the part of its text that a round lies in (the normalised index)."""
    found: list[list[int]] = [[] for _ in range(parts)]
    for row in lengths:
        for i, length in enumerate(row):
            found[i * parts // len(row)].append(length)
    return [np.array(part, dtype=np.int64) for part in found]

"""Speculative sampling by enumeration: every draft, acceptance and residual token with its probability.

For vocabularies of a few tokens. Distributions depend on the whole history, so nothing is i.i.d.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from draftwise.core.arms import NEVER, Stop
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Grade
from draftwise.core.stops import stop

History = tuple[int, ...]
Vector = NDArray[np.float64]
Distribution = Callable[[History], Vector]


def random_distribution(vocab: int, seed: int, *, sharp: float = 1.0) -> Distribution:
    """A distribution that depends on the whole history; `sharp` above 1 makes its rows less even."""
    rows: dict[History, Vector] = {}

    def distribution(history: History) -> Vector:
        if history not in rows:
            weights = np.random.default_rng([seed, *history]).exponential(size=vocab) ** sharp
            rows[history] = weights / weights.sum()
        return rows[history]

    return distribution


def near(distribution: Distribution, other: Distribution, share: float) -> Distribution:
    """A mixture of two distributions: `share` of the second."""
    return lambda history: (1.0 - share) * distribution(history) + share * other(history)


def greedy(distribution: Distribution) -> Distribution:
    """All weight on the most likely token, the lowest id among equals."""
    return lambda history: one_hot(int(distribution(history).argmax()), len(distribution(history)))


def one_hot(token: int, vocab: int) -> Vector:
    """The distribution with all weight on one token."""
    row = np.zeros(vocab)
    row[token] = 1.0
    return row


@dataclass(frozen=True, slots=True)
class Chain:
    """A model that samples drafts token by token from its own distribution, and stops by `stops`."""

    distribution: Distribution
    length: int
    stops: tuple[Stop, ...] = (NEVER,)

    def drafts(self, history: History) -> Iterator[tuple[History, list[Vector], float]]:
        """Every draft with the rows it was sampled from and its probability."""
        yield from self._drafts(history, (), [], 1.0, ())

    def _drafts(
        self, history: History, draft: History, rows: list[Vector], prob: float, seen: tuple[Signals, ...]
    ) -> Iterator[tuple[History, list[Vector], float]]:
        if len(draft) == self.length or (draft and self._ends(seen)):
            yield draft, rows, prob
            return
        q = self.distribution(history + draft)
        for token in np.flatnonzero(q).tolist():
            now = (*seen, signals(q, token))
            yield from self._drafts(history, (*draft, token), [*rows, q], prob * float(q[token]), now)

    def _ends(self, seen: tuple[Signals, ...]) -> bool:
        at = len(seen) - 1
        joint = float(np.prod([s.chosen for s in seen]))
        rule = self.stops[min(at, len(self.stops) - 1)]
        return bool(stop(rule, seen[at], position=at, previous=seen[at - 1] if at else None, joint=joint))

    def grades(self, p: Distribution, history: History, text: History) -> list[Grade]:
        """Its grade for every token of `text` after `history`."""
        grades = []
        for i, token in enumerate(text):
            before = history + text[:i]
            grades.append(grade(p(before), self.distribution(before), token))
        return grades


@dataclass(frozen=True, slots=True)
class Picked:
    """A lookup: it picks all tokens of a draft at the start of a round."""

    pick: Callable[[History], History]
    length: int

    def drafts(self, history: History) -> Iterator[tuple[History, list[Vector], float]]:
        """The one draft that it makes; a picked token is one of which its drafter is certain."""
        draft = self.pick(history)[: self.length]
        vocab = max(draft, default=0) + 1
        yield draft, [one_hot(token, vocab) for token in draft], 1.0

    def grades(self, p: Distribution, history: History, text: History) -> list[Grade]:
        """Its grade for every token of `text`, had its round started right after `history`."""
        draft = self.pick(history)[: self.length]
        rows = [p(history + text[:i]) for i in range(len(text))]
        return [grade(rows[i], one_hot(d, len(rows[i])), text[i]) for i, d in enumerate(draft[: len(text)])]


Drafter = Chain | Picked


def signals(q: Vector, token: int) -> Signals:
    """The inputs of a stop rule from one row."""
    top = np.sort(q)[::-1]
    entropy = float(-sum(x * np.log(x) for x in q if x > 0.0))
    return Signals(float(top[0]), float(top[1]), entropy, float(q[token]))


def grade(p: Vector, q: Vector, token: int) -> Grade:
    """accept = min(1, q(x) / p(x)) and overlap = sum_v min(p, q)."""
    return Grade(min(1.0, float(q[token] / p[token])), float(np.minimum(p, q).sum()), signals(q, token))


@lru_cache(maxsize=1 << 13)  # a text is reached by many rounds, and each estimate is about the same ones
def rounds(p: Distribution, drafter: Drafter, history: History) -> dict[History, float]:
    """The distribution of the tokens of one round, with the target's own (Leviathan et al. 2023)."""
    out: dict[History, float] = defaultdict(float)
    for draft, rows, prob in drafter.drafts(history):
        left = prob
        for j, token in enumerate(draft):
            row = p(history + draft[:j])
            q = np.zeros(len(row))
            q[: len(rows[j])] = rows[j]
            kept = min(1.0, float(row[token] / q[token]))
            residual = np.maximum(row - q, 0.0)
            for other in np.flatnonzero(residual).tolist() if kept < 1.0 else ():
                share = float(residual[other] / residual.sum())
                out[(*draft[:j], other)] += left * (1.0 - kept) * share
            left *= kept
            if left == 0.0:
                break
        else:
            row = p(history + draft)
            for other in np.flatnonzero(row).tolist():
                out[(*draft, other)] += left * float(row[other])
    return dict(out)


def chunk(p: Distribution, drafter: Drafter) -> float:
    """The true E[L]: the tokens of one round, the target's own included."""
    return sum(prob * len(tokens) for tokens, prob in rounds(p, drafter, ()).items())


def ends(p: Distribution, drafter: Drafter, budget: int) -> dict[tuple[History, int], float]:
    """The probability that the text starts so *and* that one of the arm's own rounds ends right there.

    Keys are (the first `budget` tokens, position from 1); a text ends where its budget does.
    """
    out: dict[tuple[History, int], float] = defaultdict(float)

    def go(text: History, marks: tuple[int, ...], prob: float) -> None:
        if len(text) >= budget:
            for mark in marks:
                out[text[:budget], mark] += prob
            return
        for tokens, chance in rounds(p, drafter, text).items():
            go(text + tokens, (*marks, len(text) + len(tokens)), prob * chance)

    go((), (), 1.0)
    return dict(out)


def count(p: Distribution, drafter: Drafter, budget: int) -> float:
    """The true mean number of rounds for a text of `budget` tokens."""

    @cache
    def left(budget: int, history: History) -> float:
        if budget <= 0:
            return 0.0
        distributions = rounds(p, drafter, history).items()
        return 1.0 + sum(
            prob * left(budget - len(tokens), history + tokens) for tokens, prob in distributions
        )

    return left(budget, ())


def texts(p: Distribution, length: int, history: History = ()) -> Iterator[tuple[History, float]]:
    """Every text of `length` tokens that the target may write, with its probability."""
    if not length:
        yield (), 1.0
        return
    row = p(history)
    for token in np.flatnonzero(row).tolist():
        for rest, prob in texts(p, length - 1, (*history, token)):
            yield (token, *rest), float(row[token]) * prob

"""Where each drafter is right: distributions of acceptance in simulated texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...policies.learners.learner import FullInformation, Learner

Hits = NDArray[np.bool_]


class Acceptance(Protocol):
    """Samples, for one text, which of its tokens each drafter would have predicted."""

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        """Shape (drafters, tokens): True where the drafter's token is the text's own."""
        ...


def _checked(chances: Sequence[float]) -> None:
    for chance in chances:
        if not 0.0 <= chance <= 1.0:
            raise UserError(f"acceptance chance {chance!r}: give a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Stationary:
    """Drafter i is right with probability `chances[i]` at every token, independently of the past.

    The stationary arms of BanditSpec (arXiv 2505.15141), section 4, and of MetaSD (arXiv 2604.05417).
    """

    chances: Sequence[float]

    def __post_init__(self) -> None:
        _checked(self.chances)

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        return np.stack([rng.random(tokens, dtype=np.float32) < chance for chance in self.chances])


@dataclass(frozen=True, slots=True)
class Switching:
    """The probabilities cycle through `phases`.

    With `every` tokens they change inside a text, otherwise once per text.
    """

    phases: Sequence[Sequence[float]]
    every: int = 0

    def __post_init__(self) -> None:
        for phase in self.phases:
            _checked(phase)

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        if not self.every:
            return Stationary(self.phases[query % len(self.phases)]).hits(query, tokens, rng)
        at = self.phase(np.arange(tokens))
        by_drafter = np.asarray(self.phases, dtype=np.float32).T
        return np.stack([rng.random(tokens, dtype=np.float32) < chances[at] for chances in by_drafter])

    def phase(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The phase number at these positions of a text whose phases change inside it."""
        return at // self.every % len(self.phases)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of easy and of hard text: a two-state Markov chain selects the probability.

    Runs of easy tokens have a geometric length of mean `easy_run`, hard ones of `hard_run`. The chain is
    shared by all drafters, or with `apart` each has its own; it starts in its stationary distribution.
    """

    easy: Sequence[float]
    hard: Sequence[float]
    easy_run: float = 20.0
    hard_run: float = 20.0
    apart: bool = False

    def __post_init__(self) -> None:
        _checked([*self.easy, *self.hard])
        if not min(self.easy_run, self.hard_run) >= 1.0:
            raise UserError(f"mean runs {self.easy_run!r} and {self.hard_run!r}: give at least 1 token each")

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        chain = self._chain(tokens, rng)
        rows = []
        for easy, hard in zip(self.easy, self.hard, strict=True):
            chance = np.where(chain, np.float32(easy), np.float32(hard))
            rows.append(rng.random(tokens, dtype=np.float32) < chance)
            if self.apart:
                chain = self._chain(tokens, rng)
        return np.stack(rows)

    def _chain(self, tokens: int, rng: np.random.Generator) -> Hits:
        """True where the text is easy. Geometric runs are memoryless, so the first run is like any other."""
        easy = bool(rng.random() < self.easy_run / (self.easy_run + self.hard_run))
        means = (self.easy_run, self.hard_run) if easy else (self.hard_run, self.easy_run)
        pairs = int(tokens / sum(means) * 1.2) + 16
        pieces, total = [], 0
        while total < tokens:
            lengths = np.stack([rng.geometric(1.0 / mean, pairs) for mean in means], axis=1).ravel()
            pieces.append(np.repeat(np.tile([easy, not easy], pairs), lengths))
            total += int(lengths.sum())
        return np.concatenate(pieces)[:tokens]


@dataclass(frozen=True, slots=True)
class Written:
    """The same given hits for every text; beyond their end every drafter is wrong."""

    table: Hits

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        short = max(0, tokens - self.table.shape[1])
        return np.pad(self.table[:, :tokens], ((0, 0), (0, short)))


def punish(victim: Learner | FullInformation, tokens: int, *, length: int = 5, rng: Random) -> Written:
    """The text on which `victim`, if it is deterministic, never gets a token accepted.

    The adversary simulates the victim, whose arms draft `length` tokens at equal cost: the drafter that it
    would choose is wrong and all others are right. So every deterministic learner has a regret that grows
    linearly with the length of the text (Cesa-Bianchi and Lugosi 2006, section 4.1), since some fixed drafter
    is wrong at no more than one in `arms` tokens. A randomised learner avoids this: its choices on the text
    differ from the simulated ones.
    """
    table = np.ones((victim.arms, tokens), dtype=np.bool_)
    everyone, hits = range(victim.arms), [0] * victim.arms
    for at in range(tokens):
        arm, chance = victim.choose(everyone, rng)
        table[arm, at] = False
        if hasattr(victim, "learn_all"):
            hits = [0 if i == arm else n + 1 for i, n in enumerate(hits)]
            victim.learn_all([(n % (length + 1) == 0) / (length + 1) for n in hits])
        else:
            victim.update(arm, 0.0, chance)
    return Written(table)

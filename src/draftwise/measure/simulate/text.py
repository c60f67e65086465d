"""Simulated texts: where each drafter is right, and what each arm would get accepted at every position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ...core.outcomes import Outcome
from ...errors import UserError

Hits = NDArray[np.bool_]
Worth = Sequence[Sequence[float]]


class Acceptance(Protocol):
    """Samples, for one text, which of its tokens each drafter would have predicted."""

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        """Shape (drafters, tokens): True where the drafter's token is the text's own."""
        ...


def _check(chances: Sequence[float]) -> None:
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
        _check(self.chances)

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
            _check(phase)

    def hits(self, query: int, tokens: int, rng: np.random.Generator) -> Hits:
        if not self.every:
            return Stationary(self.phases[query % len(self.phases)]).hits(query, tokens, rng)
        at = self.phase(np.arange(tokens))
        by_drafter = np.asarray(self.phases, dtype=np.float32).T
        return np.stack([rng.random(tokens, dtype=np.float32) < chances[at] for chances in by_drafter])

    def phase(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the phase number at these positions of a text whose phases change inside it."""
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
        _check([*self.easy, *self.hard])
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
        """Return True where it is easy; geometric runs are memoryless, so the first is like any other."""
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
class SimArm:
    """A round of `length` draft tokens by drafter number `drafter`.

    It takes `draft` seconds per draft token and `target` seconds for the target's pass.
    """

    drafter: int
    length: int = 5
    draft: float = 0.0
    target: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.length <= 250:
            raise UserError(f"length={self.length!r}: give 0 to 250 draft tokens")

    @property
    def seconds(self) -> float:
        """Seconds of a round."""
        return self.length * self.draft + self.target


@dataclass(frozen=True, slots=True)
class Text:
    """A text of `tokens` tokens for `arms`, sampled before any learner plays on it.

    `accepted[arm][t]` is how many tokens a round of the arm that starts at token t gets accepted, counted
    before the text is cut at its end. `ends[arm, t]` says whether a round of the arm ends with token t if the
    arm plays alone from the start: its virtual cursor.
    """

    arms: tuple[SimArm, ...]
    tokens: int
    accepted: tuple[bytes, ...]
    ends: Hits

    @classmethod
    def draw(
        cls, acceptance: Acceptance, arms: Sequence[SimArm], tokens: int, *, rng: Random, query: int = 0
    ) -> Text:
        """Draw a text by `acceptance`; `query` is its number, for distributions that change between texts."""
        if tokens < 1:
            raise UserError(f"tokens={tokens!r}: a text has at least 1 token")
        longest = max(arm.length for arm in arms)
        hits = acceptance.hits(query, tokens + longest, np.random.default_rng(rng.getrandbits(64)))
        wrong = [arm for arm in arms if not 0 <= arm.drafter < len(hits)]
        if wrong:
            raise UserError(f"{wrong[0]}: the distribution has {len(hits)} drafters, numbered from 0")
        accepted = tuple(_accepted(hits[arm.drafter], arm.length)[:tokens].tobytes() for arm in arms)
        ends = np.stack([_ends(hits[arm.drafter, :tokens], arm.length) for arm in arms])
        return cls(tuple(arms), tokens, accepted, ends)

    def rounds(self, arm: int, tokens: int | None = None) -> int:
        """Return the rounds that `arm` alone needs for the first `tokens` tokens; the last may be cut."""
        ends = self.ends[arm, :tokens]
        return int(ends.sum()) + (not ends[-1])


def _accepted(hits: Hits, length: int) -> NDArray[np.uint8]:
    """Return consecutive hits from each position on, at most `length`."""
    places = np.arange(len(hits), dtype=np.int32)
    miss = np.where(hits, np.int32(len(hits)), places)
    miss = np.minimum.accumulate(miss[::-1])[::-1]
    return np.minimum(miss - places, length).astype(np.uint8)


def _ends(hits: Hits, length: int) -> Hits:
    """Return where rounds end: at a miss, which the target corrects, or after `length` hits and its token.

    That token counts whether the drafter predicted it or not, so the next round starts at the same place
    either way, and the rounds between two misses are `length` + 1 tokens each.
    """
    places = np.arange(len(hits), dtype=np.int32)
    miss = np.maximum.accumulate(np.where(hits, np.int32(-1), places))
    return cast(Hits, (places - miss) % (length + 1) == 0)


def by_reward(arms: Sequence[SimArm], reward: Callable[[Outcome, int], float]) -> Worth:
    """Return the table worth[arm][accepted] of a stateless reward of `policies.recorders.bandit`."""
    longest = max(arm.length for arm in arms)
    return [
        [reward(Outcome(i, n, arm.length, arm.seconds), longest) for n in range(arm.length + 1)]
        for i, arm in enumerate(arms)
    ]


def by_rate(arms: Sequence[SimArm]) -> Worth:
    """Return the table worth[arm][accepted] of tokens per second over the most that any arm can reach."""
    top = max((arm.length + 1) / arm.seconds for arm in arms)
    return [[(n + 1) / arm.seconds / top for n in range(arm.length + 1)] for arm in arms]

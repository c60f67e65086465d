"""One simulated text as its arms see it: how many tokens each would get accepted at every position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...core.outcomes import Outcome
from ...errors import UserError
from .acceptance import Acceptance, Hits

Worth = Sequence[Sequence[float]]


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
        """A text by `acceptance`; `query` is its number, for distributions that change from text to text."""
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
        """The rounds that `arm` alone needs for the first `tokens` tokens; the last may be cut."""
        ends = self.ends[arm, :tokens]
        return int(ends.sum()) + (not ends[-1])


def _accepted(hits: Hits, length: int) -> NDArray[np.uint8]:
    """Consecutive hits from each position on, at most `length`."""
    places = np.arange(len(hits), dtype=np.int32)
    miss = np.where(hits, np.int32(len(hits)), places)
    miss = np.minimum.accumulate(miss[::-1])[::-1]
    return np.minimum(miss - places, length).astype(np.uint8)


def _ends(hits: Hits, length: int) -> Hits:
    """Where rounds end: at a miss, which the target corrects, or with its own token after `length` hits.

    That token counts whether the drafter predicted it or not, so the next round starts at the same place
    either way, and the rounds between two misses are `length` + 1 tokens each.
    """
    places = np.arange(len(hits), dtype=np.int32)
    miss = np.maximum.accumulate(np.where(hits, np.int32(-1), places))
    return cast(Hits, (places - miss) % (length + 1) == 0)


def by_reward(arms: Sequence[SimArm], reward: Callable[[Outcome, int], float]) -> Worth:
    """The table worth[arm][accepted] of a stateless reward of `draftwise.policies.recorders.rewards`."""
    longest = max(arm.length for arm in arms)
    return [
        [reward(Outcome(i, n, arm.length, arm.seconds), longest) for n in range(arm.length + 1)]
        for i, arm in enumerate(arms)
    ]


def by_rate(arms: Sequence[SimArm]) -> Worth:
    """The table worth[arm][accepted] of tokens per second over the maximum that any arm can reach."""
    top = max((arm.length + 1) / arm.seconds for arm in arms)
    return [[(n + 1) / arm.seconds / top for n in range(arm.length + 1)] for arm in arms]

"""Follow the leader: the arm with the least loss so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from random import Random

from ...state.learned import adds, learned


@dataclass(slots=True)
class FollowTheLeader:
    """Plays the arm with the lowest mean loss, the first of equals.

    The simplest learner with full information (Cesa-Bianchi and Lugosi 2006, section 3.2): good when the
    losses are stationary, at the mercy of an adversary. `memory` below 1 shrinks past losses and counts by
    it at each step. Means are over the steps in which an arm was awake, so sleeping is neither good nor
    bad; an arm not yet seen counts as lossless and gets its turn.
    """

    arms: int
    _: KW_ONLY
    memory: float = 1.0
    losses: list[float] = field(default_factory=list, metadata=learned(adds))
    counts: list[float] = field(default_factory=list, metadata=learned(adds))

    def __post_init__(self) -> None:
        self.losses = self.losses or [0.0] * self.arms
        self.counts = self.counts or [0.0] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        losses, counts = self.losses, self.counts
        means = [losses[arm] / counts[arm] if counts[arm] else 0.0 for arm in allowed]
        return allowed[means.index(min(means))], 1.0

    def learn_all(self, losses: Sequence[float | None]) -> None:
        memory = self.memory
        for arm, loss in enumerate(losses):
            if loss is not None:
                self.losses[arm] = memory * self.losses[arm] + loss
                self.counts[arm] = memory * self.counts[arm] + 1.0

    def abort(self, arm: int) -> None:
        """Nothing was counted: full information does not depend on what was played."""

    def estimates(self) -> list[float]:
        return [1.0 - x / n if n else 1.0 for x, n in zip(self.losses, self.counts, strict=True)]

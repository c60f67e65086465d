"""AdaNormalHedge: NormalHedge in closed form, for arms that sleep or join late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import exp
from random import Random

from ...state.learned import adds, learned
from .draw import draw
from .hedge import expected_loss


@dataclass(slots=True)
class AdaNormalHedge:
    """w is proportional to Phi(R + 1, C + 1) - Phi(R - 1, C + 1), with Phi(R, C) = exp([R]+^2 / (3C)).

    Luo and Schapire 2015, Algorithm 1, with sleeping experts as in its section 5: an arm without a loss
    (None) keeps its regret R and its sum C of absolute regrets, and the others are compared with the mean
    over those awake. So a drafter that joins late starts level, and its regret counts only the time it was
    there. `memory` below 1 shrinks R and C by it at each step (ours).
    """

    arms: int
    _: KW_ONLY
    memory: float = 1.0
    regrets: list[float] = field(default_factory=list, metadata=learned(adds))
    sizes: list[float] = field(default_factory=list, metadata=learned(adds))

    def __post_init__(self) -> None:
        self.regrets = self.regrets or [0.0] * self.arms
        self.sizes = self.sizes or [0.0] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        i, chance = draw(self.weights(allowed), rng)
        return allowed[i], chance

    def weights(self, allowed: Sequence[int]) -> list[float]:
        """The weight of each allowed arm, in order, on a common scale; all 0 if none is worth playing."""
        regrets = [self.regrets[arm] for arm in allowed]
        thirds = [3.0 * (self.sizes[arm] + 1.0) for arm in allowed]
        up = [max(0.0, r + 1.0) ** 2 / c for r, c in zip(regrets, thirds, strict=True)]
        down = [max(0.0, r - 1.0) ** 2 / c for r, c in zip(regrets, thirds, strict=True)]
        top = max(up)
        return [exp(a - top) - exp(b - top) for a, b in zip(up, down, strict=True)]

    def learn_all(self, losses: Sequence[float | None]) -> None:
        own = expected_loss(self.weights(range(self.arms)), losses)
        steps = [0.0 if loss is None else own - loss for loss in losses]
        memory = self.memory
        self.regrets = [memory * r + step for r, step in zip(self.regrets, steps, strict=True)]
        self.sizes = [memory * c + abs(step) for c, step in zip(self.sizes, steps, strict=True)]

    def abort(self, arm: int) -> None:
        """Nothing was counted: full information does not depend on what was played."""

    def estimates(self) -> list[float]:
        weights = self.weights(range(self.arms))
        total = sum(weights)
        return [w / total if total else 1.0 / self.arms for w in weights]

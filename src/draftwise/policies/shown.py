"""What learners hold of their arms, for displays."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Protocol

from ..core.roles import Values

UNIT = "the learner's estimate"


class Estimating(Protocol):
    """A learner, as far as displays read it."""

    def estimates(self) -> list[float]:
        """The present value of each arm, higher is better."""


def estimated(learners: Iterable[Estimating | None], arms: int) -> Values:
    """The mean of what these learners hold of each arm; nothing if there is none yet."""
    told = [learner.estimates() for learner in learners if learner is not None]
    columns = zip(*told, strict=True) if told else [()] * arms
    return Values(UNIT, tuple(_mean([x for x in column if isfinite(x)]) for column in columns))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

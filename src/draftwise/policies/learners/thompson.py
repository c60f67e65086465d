"""Gaussian Thompson sampling: play the arm whose mean, sampled from its posterior, is highest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import nan, sqrt
from random import Random
from typing import Any

import numpy as np

from ...state.learned import adds, learned
from .learner import Uncounted


def _mean_of_posterior(base: Any, parts: Sequence[Any], name: str) -> Any:
    """Normal posteriors: precisions add, and so do precisions times means."""
    start = np.array(base.means) * np.array(base.precisions)
    gained = sum(np.array(part.means) * np.array(part.precisions) - start for part in parts)
    return ((start + gained) / np.array(adds(base, parts, "precisions"))).tolist()


@dataclass(slots=True)
class GaussianThompson(Uncounted):
    """Thompson sampling with a normal prior on each mean and normal noise of known variance.

    The sequence-level learner of TapOut (arXiv 2511.02017), which names neither prior nor noise. Chosen
    here: mean 1/2 and variance 1/4 for the prior, which covers [0, 1], and 1/4 for the noise, the most
    that a reward in [0, 1] can vary. Draws differ within a batch, so nothing is counted in flight. The
    chance of an arm is an integral without a closed form: the propensity is NaN.
    """

    arms: int
    _: KW_ONLY
    mean: float = 0.5
    variance: float = 0.25
    noise: float = 0.25
    means: list[float] = field(default_factory=list, metadata=learned(_mean_of_posterior))
    precisions: list[float] = field(default_factory=list, metadata=learned(adds))

    def __post_init__(self) -> None:
        self.means = self.means or [self.mean] * self.arms
        self.precisions = self.precisions or [1.0 / self.variance] * self.arms

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        means, precisions, gauss = self.means, self.precisions, rng.gauss
        draws = [means[arm] + gauss(0.0, 1.0) / sqrt(precisions[arm]) for arm in allowed]
        return allowed[draws.index(max(draws))], nan

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.precisions[arm] += 1.0 / self.noise
        self.means[arm] += (reward - self.means[arm]) / (self.noise * self.precisions[arm])

    def estimates(self) -> list[float]:
        return list(self.means)

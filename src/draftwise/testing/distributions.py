"""Next-token distributions in numpy, and what sampling settings make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core.sampling import Sampling

Vector = NDArray[np.float64]
Distribution = Callable[[Sequence[int]], Vector]


def markov(matrix: ArrayLike) -> Distribution:
    """Logits of an order-1 chain: row `i` holds the probabilities of what follows token `i`."""
    rows = np.log(np.maximum(np.asarray(matrix, dtype=np.float64), 1e-300))

    def logits(history: Sequence[int]) -> Vector:
        return cast(Vector, rows[history[-1]])

    return logits


def softmax(logits: Vector) -> Vector:
    """Probabilities of logits, shape (vocabulary,)."""
    e = np.exp(logits - logits.max())
    return cast(Vector, e / e.sum())


def shape(logits: Vector, history: Sequence[int], prompt_length: int, sampling: Sampling) -> Vector:
    """The distribution that `sampling` makes of raw logits after `history`.

    Penalties, temperature, top-k, top-p and min-p, in the same order and with the same conventions as
    Transformers' logits processors, written independently of them.
    """
    z = logits.astype(np.float64).copy()
    if sampling.repetition_penalty != 1.0:
        present = list(set(history))
        z[present] = np.where(
            z[present] < 0, z[present] * sampling.repetition_penalty, z[present] / sampling.repetition_penalty
        )
    counts = np.bincount(np.asarray(history[prompt_length:], dtype=np.int64), minlength=len(z))
    z -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    if sampling.greedy:
        return cast(Vector, np.eye(len(z))[int(z.argmax())])
    z /= sampling.temperature
    if 0 < sampling.top_k < len(z):
        z[z < np.sort(z)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1.0:
        order = np.argsort(z, kind="stable")
        below = np.cumsum(softmax(z)[order])
        drop = below <= 1 - sampling.top_p
        drop[-1] = False
        z[order[drop]] = -np.inf
    if sampling.min_p > 0.0:
        p = softmax(z)
        z[p < sampling.min_p * p.max()] = -np.inf
    return softmax(z)


def draw(p: Vector, u: float) -> int:
    """The token at quantile `u` of `p`, in vocabulary order."""
    cdf = np.cumsum(p)
    return int(min(np.searchsorted(cdf, u * cdf[-1], side="right"), len(p) - 1))

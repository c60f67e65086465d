"""Exact distributions of short texts, and the tests that samples are compared with. NumPy only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import erfc, exp, lgamma, log, sqrt
from random import Random

import numpy as np
from numpy.typing import ArrayLike

from ..core.drafts import Draft
from ..core.loop import Loop
from ..core.request import Request
from ..core.roles import Target
from ..core.sampling import Sampling
from .distributions import Distribution, shape

Text = tuple[int, ...]


def exact(
    distribution: Distribution, prompt: Sequence[int], vocab: int, length: int, sampling: Sampling
) -> dict[Text, float]:
    """The probability of every text of `length` tokens after `prompt`, from raw logits of the history."""
    out = {}
    for text in product(range(vocab), repeat=length):
        p = 1.0
        for i, token in enumerate(text):
            history = [*prompt, *text[:i]]
            p *= shape(distribution(history), history, len(prompt), sampling)[token]
            if p == 0.0:
                break
        out[text] = float(p)
    return out


def exact_of(target: Target, prompt: Sequence[int], length: int, sampling: Sampling) -> dict[Text, float]:
    """The probability of every possible text of `length` tokens after `prompt`, as the target says itself.

    The target reads every beginning of every text, without a draft. Keep the vocabulary, or `top_k`, and
    `length` small.
    """
    probs: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        requests = [
            Request(-1 - i, [*prompt, *text], len(prompt), sampling, Random(i), Random(i))
            for i, text in enumerate(probs)
        ]
        longer: dict[Text, float] = {}
        for request, (text, p) in zip(requests, probs.items(), strict=True):
            for token, chance in enumerate(after(target, request)):
                if chance > 0.0:
                    longer[(*text, token)] = p * chance
        probs = longer
    return probs


def after(target: Target, request: Request) -> list[float]:
    """The target's probability of every token after the text of a request that it does not know yet."""
    target.open(request)
    (scores,) = target.verify([(request, Draft())])
    chances = [scores.chance(-1, token) for token in range(target.vocab_size)]
    target.close(request)
    return chances


def sample(
    make: Callable[[], Loop], prompt: Sequence[int], sampling: Sampling, n: int, *, batch: int = 1
) -> Counter[Text]:
    """`n` texts from one loop, at most `batch` at a time, counted."""
    texts: dict[int, list[int]] = {}
    for round in make().run([list(prompt)] * n, sampling, batch=batch):
        texts.setdefault(round.request, []).extend(round.tokens)
    return Counter(tuple(t) for t in texts.values())


def p_value(counts: Mapping[Text, int], expected: Mapping[Text, float]) -> float:
    """The chi-square p-value of counts against probabilities; cells expecting fewer than five are pooled.

    0 if something was counted that has probability 0.
    """
    n = sum(counts.values())
    if any(expected.get(text, 0.0) == 0.0 for text in counts):
        return 0.0
    common = [t for t, p in expected.items() if p * n >= 5]
    observed = [float(counts.get(t, 0)) for t in common]
    expectations = [expected[t] * n for t in common]
    rest = n - sum(expectations)
    if rest > 1e-6 * n:
        observed.append(n - sum(observed))
        expectations.append(rest)
    return fit(observed, expectations)


def uniformity(values: ArrayLike, *, bins: int = 20) -> float:
    """The chi-square p-value of numbers in [0, 1] against the uniform distribution."""
    counts, _ = np.histogram(np.asarray(values, dtype=float), bins=bins, range=(0.0, 1.0))
    return fit(counts.tolist(), [float(counts.sum()) / bins] * bins)


def fit(observed: Sequence[float], expected: Sequence[float]) -> float:
    """The p-value of Pearson's chi-square statistic of counts; 1 where there are fewer than two cells."""
    if len(observed) < 2:
        return 1.0
    a, b = np.asarray(observed, dtype=float), np.asarray(expected, dtype=float)
    b *= a.sum() / b.sum()
    half, degrees = float(((a - b) ** 2 / b).sum()) / 2.0, len(observed) - 1
    if half == 0.0:
        return 1.0
    # The chance that a chi-square variable is larger: a finite sum for whole degrees of freedom.
    odd = degrees % 2
    powers = [k + 0.5 * odd for k in range(degrees // 2)]
    terms = [exp(k * log(half) - half - lgamma(k + 1.0)) for k in powers]
    return min(1.0, (erfc(sqrt(half)) if odd else 0.0) + sum(terms))

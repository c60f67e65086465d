"""Exact laws of short texts, and the chi-square test that sampled texts are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from scipy.stats import chisquare

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.testing.distributions import Law, shape


def exact(
    law: Law, prompt: Sequence[int], vocab: int, length: int, sampling: Sampling
) -> dict[tuple[int, ...], float]:
    """The probability of every text of `length` tokens after `prompt`."""
    out = {}
    for text in product(range(vocab), repeat=length):
        p = 1.0
        for i, token in enumerate(text):
            p *= shape(law([*prompt, *text[:i]]), [*prompt, *text[:i]], len(prompt), sampling)[token]
            if p == 0.0:
                break
        out[text] = float(p)
    return out


def sample(
    make: Callable[[], Loop], prompt: Sequence[int], sampling: Sampling, n: int, *, batch: int = 1
) -> Counter[tuple[int, ...]]:
    """`n` texts from one loop, counted."""
    loop = make()
    texts: dict[int, list[int]] = {}
    for round in loop.run([list(prompt)] * n, sampling, batch=batch):
        texts.setdefault(round.request, []).extend(round.tokens)
    assert not any(loop.faults.values()), loop.faults
    return Counter(tuple(t) for t in texts.values())


def p_value(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """The chi-square p-value of counts against a law; cells expecting fewer than five are pooled."""
    n = sum(counts.values())
    if any(law.get(text, 0.0) == 0.0 for text in counts):
        return 0.0
    common = [t for t, p in law.items() if p * n >= 5]
    seen = [counts[t] for t in common]
    expected = [law[t] * n for t in common]
    rest = n - sum(expected)
    if rest > 1e-6 * n:
        seen.append(n - sum(seen))
        expected.append(rest)
    if len(seen) < 2:
        return 1.0
    return float(chisquare(seen, np.asarray(expected) * sum(seen) / sum(expected)).pvalue)

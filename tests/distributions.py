"""Exact distributions of short texts, and the chi-square test that sampled texts are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.testing import exact, p_value
from draftwise.testing import sample as sampled
from tests.effort import drawn

__all__ = ["exact", "p_value", "sample"]


def sample(
    make: Callable[[], Loop], prompt: Sequence[int], sampling: Sampling, n: int, *, batch: int = 1
) -> Counter[tuple[int, ...]]:
    """`n` texts from one loop in a thorough run, else fewer, counted; no drafter may have failed."""
    loop = make()
    counts = sampled(lambda: loop, prompt, sampling, drawn(n), batch=batch)
    assert not any(loop.faults.values()), loop.faults
    return counts

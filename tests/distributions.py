"""Exact distributions of short texts, and the chi-square test that sampled texts are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from draftwise.core.loop import Loop
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.testing import exact, p_value
from draftwise.testing import sample as sampled
from tests.core.turns import group_tokens
from tests.effort import drawn

__all__ = ["check_distribution", "exact", "p_value", "sample", "sample_each"]


def sample(
    loop: Loop, prompt: Sequence[int], sampling: Sampling, n: int, *, batch: int = 1
) -> Counter[tuple[int, ...]]:
    """`n` texts from one loop in a thorough run, else fewer, counted; no drafter may have failed."""
    counts = sampled(lambda: loop, prompt, sampling, drawn(n), batch=batch)
    assert not any(loop.faults.values()), loop.faults
    return counts


def sample_each(
    loop: Loop, prompt: Sequence[int], settings: Iterable[Sampling], *, batch: int
) -> Counter[tuple[int, ...]]:
    """One text for each of the settings, counted."""
    rounds: list[Round] = []
    for sampling in settings:
        loop.add(prompt, sampling)
        while len(loop.open) >= batch:
            rounds += loop.step()
    while loop.open:
        rounds += loop.step()
    assert not any(loop.faults.values()), loop.faults
    return Counter(map(tuple, group_tokens(rounds)))


def check_distribution(
    loop: Loop,
    prompt: Sequence[int],
    sampling: Sampling,
    n: int,
    expected: Mapping[tuple[int, ...], float],
    *,
    batch: int = 1,
) -> None:
    """Assert that sampled texts have a distribution; a longer text beside them does not count."""
    counts = sample(loop, prompt, sampling, n, batch=batch)
    short = {text: k for text, k in counts.items() if len(text) == sampling.max_new_tokens}
    assert sum(short.values()) == drawn(n) and p_value(short, expected) > 1e-3

"""A world in which time is counted, not measured: every pass, draft and grade moves one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from draftwise.core import drafter_pool as team_module
from draftwise.core import loop as loop_module
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Grade
from draftwise.core.request import Request
from draftwise.core.roles import Drafter, GradeJob, Scores
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.policies.catalogue import method
from draftwise.testing.distributions import Distribution, Vector
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget

from .script import Clock

V = 12


@dataclass
class Prices:
    """Seconds of a target pass by its tokens and requests, of a drafted token, of a token that is read."""

    target: Callable[[int, int], float] = lambda tokens, requests: 10e-3 + 0.1e-3 * tokens
    token: float = 0.8e-3
    reading: float = 0.05e-3


class Target(SimTarget):
    def __init__(self, distribution: Distribution, clock: Clock, prices: Prices) -> None:
        super().__init__(distribution, V)
        self.clock, self.prices = clock, prices

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        tokens = sum(1 + len(draft.tokens) for _, draft in batch)
        self.clock.now += self.prices.target(tokens, len(batch))
        return super().verify(batch)


class Model(SimDrafter):
    """A model that takes time to draft, and to read what it has not read."""

    def __init__(self, distribution: Distribution, clock: Clock, prices: Prices) -> None:
        super().__init__(distribution)
        self.clock, self.prices = clock, prices
        self.read: dict[int, int] = {}

    def _catch_up(self, request: Request) -> None:
        unread = len(request.tokens) - self.read.get(request.id, 0)
        self.clock.now += self.prices.reading * max(0, unread)
        self.read[request.id] = len(request.tokens)

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        made = super().draft(jobs)
        for job in jobs:
            self._catch_up(job.request)
        self.clock.now += self.prices.token * max((len(d.tokens) for d in made), default=0)
        return made

    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        self.clock.now += self.prices.token
        for job in jobs:
            self._catch_up(job.request)
        return super().grade(jobs)


def table(seed: int, sharp: float) -> Distribution:
    """A text distribution of order two; the sharper, the easier to guess."""
    logits = np.random.default_rng(seed).normal(size=(V, V, V)) * sharp

    def distribution(history: Sequence[int]) -> Vector:
        return np.asarray(logits[history[-2], history[-1]], dtype=np.float64)

    return distribution


def mixed(a: Distribution, b: Distribution, share: float) -> Distribution:
    return lambda history: share * a(history) + (1.0 - share) * b(history)


def phases(distributions: Sequence[Distribution], every: int) -> Distribution:
    """Another distribution every so many tokens."""
    return lambda history: distributions[len(history) // every % len(distributions)](history)


EASY, HARD = table(1, 3.0), table(1, 0.05)
PROMPT = [1, 2, 3, 4] * 4


@dataclass
class World:
    """Runs policies over one text distribution and counts their seconds per token."""

    monkeypatch: pytest.MonkeyPatch
    distribution: Distribution
    prices: Prices
    models: Mapping[str, Distribution]
    lookups: Iterable[str] = ()

    def seconds(
        self, policy: str, *, texts: int = 6, tokens: int = 150, batch: int = 1, seed: int = 0
    ) -> float:
        """Seconds for one token, with texts of this many tokens and seeds of their own."""
        return self.run(policy, texts=texts, tokens=tokens, batch=batch, seed=seed)[0]

    def run(
        self, policy: str, *, texts: int = 6, tokens: int = 150, batch: int = 1, seed: int = 0
    ) -> tuple[float, Loop, list[Any]]:
        clock = Clock()
        self.monkeypatch.setattr(loop_module, "perf_counter", clock)
        self.monkeypatch.setattr(team_module, "perf_counter", clock)
        team: dict[str, Drafter] = {
            name: Model(distribution, clock, self.prices) for name, distribution in self.models.items()
        }
        team |= {name: NgramDrafter(max=2 + i) for i, name in enumerate(self.lookups)}
        made = method(policy, list(team))
        loop = Loop(
            Target(self.distribution, clock, self.prices), team, made.policy, made.recorder, seed=seed
        )
        rounds = list(
            loop.run([PROMPT] * texts, Sampling(max_new_tokens=tokens, temperature=1.0), batch=batch)
        )
        assert not any(loop.faults.values()), loop.faults
        return clock.now / (texts * tokens), loop, rounds

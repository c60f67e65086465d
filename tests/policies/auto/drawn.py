"""The scripted world with drawn texts: target and drafter draw evenly from ranges that overlap.

The target draws from `EVENLY` tokens; a drafter that is right with a chance of a draws from as many, of which
the share a is the same, so that a token is accepted with that chance. Its confidence says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from draftwise.core.drafts import Draft, Job, Signals
from draftwise.core.outcomes import Grade
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.testing.distributions import Vector

from . import script
from .script import Right, V, always

EVENLY = 100
SIGNALS = Signals(1 / EVENLY, 1 / EVENLY, float(np.log(EVENLY)), 1 / EVENLY)


@cache
def row(first: int) -> Vector:
    """The distribution of a draw from the `EVENLY` tokens after `first`."""
    made = np.zeros(V)
    made[first : first + EVENLY] = 1 / EVENLY
    return made


@dataclass
class Scores:
    """The target's view of one draft, wherever it is."""

    request: Request
    draft: Draft

    def choice(self, node: int) -> int:
        return self.request.rng.randrange(EVENLY)

    def chance(self, node: int, token: int) -> float:
        return float(row(0)[token])

    def prob(self, node: int) -> float:
        return self.chance(node, self.draft.tokens[node])

    def residual(self, node: int) -> int:
        """Tokens that the drafter could not draw."""
        (first,) = np.flatnonzero(self.draft.dist[node])[:1]
        return self.request.rng.randrange(int(first))


class Target(script.Target):
    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Any]:
        super().verify(batch)
        return [Scores(request, draft) for request, draft in batch]


@dataclass
class Model(script.Model):
    """Draws its tokens, of which the share `right` is the target's."""

    right: Right = field(default=always(0.0))

    def _first(self, request: Request, at: int) -> int:
        return round(EVENLY * (1.0 - self.right(request.tokens[0], at, request.rng)))

    def _guess(self, request: Request, at: int) -> tuple[int, Signals]:
        return self._first(request, at) + request.rng.randrange(EVENLY), SIGNALS

    def _draft(self, job: Job) -> Draft:
        guesses = self._guesses(job)
        dist = [row(self._first(job.request, job.request.position + k)) for k in range(len(guesses))]
        return Draft.chain(
            [token for token, _ in guesses],
            probs=[1 / EVENLY] * len(guesses),
            dist=dist,
            signals=[signal for _, signal in guesses],
        )

    def _grade(self, request: Request, at: int) -> Grade:
        hit = float(request.tokens[request.prompt_length + at] >= self._first(request, at))
        return Grade(hit, hit, SIGNALS)


class Stage(script.Stage):
    """Texts, drafters and prices, as in the world of greedy texts."""

    def _target(self, texts: Sequence[Sequence[int]]) -> Target:
        return Target(texts, self.clock, self.prices, self.padded)

    def _model(self, name: str, right: Right, texts: Sequence[Sequence[int]]) -> Model:
        return Model(texts, (), self.clock, self.own.get(name, self.prices), right=right)

    def _sampling(self) -> Sampling:
        return Sampling(max_new_tokens=self.tokens, temperature=1.0)

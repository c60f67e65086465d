"""Scores of sampling where the logits are not on the host: all that a verdict needs comes in one copy.

The walk through a draft runs on the host, token by token. Each number that it may ask for is computed on the
device beforehand, for all requests, with the random numbers that it will draw; then the host waits once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from random import Random
from typing import cast

import torch
from torch import Tensor

from ..core.drafts import Draft
from ..core.request import Request
from ..models.distributions import Chain, no_token
from .scores import SampledScores


class DeviceScores(SampledScores):
    """`SampledScores` whose numbers are computed before they are asked for; `read_all` fetches them.

    A picked node needs the target's own token after it. A sampled one needs its probability, and the token
    that replaces it if it is rejected; the last of them also the target's own token after it. What was not
    foreseen is read from the device on request.
    """

    __slots__ = ("chances", "choices", "draws", "numbers", "residuals")

    def __init__(self, request: Request, draft: Draft, logits: Tensor, chain: Chain) -> None:
        super().__init__(request, draft, logits, chain)
        self.choices: dict[int, int] = {}
        self.chances: list[float] = []
        self.residuals: list[int] = []
        self.draws: list[float] = []
        self.numbers: Tensor | None = None

    def compute(self) -> Tensor:
        """Return the numbers that `take` is to be given, on the device, shape (numbers,), float64.

        They are computed once: what is launched with the pass need not be launched when it is over.
        """
        if self.numbers is None:
            self.numbers = self._compute()
        return self.numbers

    def _compute(self) -> Tensor:
        assert self.rows is not None  # no processor depends on the text
        rows, draft = self.rows, self.draft
        depths = depths_of(draft)
        uniforms = self.request.peek(self.request.position, max(depths) + 1)
        if draft.dist is None:
            return quantiles(rows, _on([uniforms[depth] for depth in depths], rows.device)).double()
        n = len(draft.dist)
        self.draws = peek(self.request.rng, n + 1)
        given = draft.dist if isinstance(draft.dist, Tensor) else torch.stack([*map(_row, draft.dist)])
        left = (rows[:n] - given.to(rows.device)).clamp(min=0)
        left = torch.where(left.any(-1, keepdim=True), left, rows[:n])
        tokens = torch.tensor(draft.tokens[:n]).to(rows.device, non_blocking=True)
        own = [uniforms[depth] for depth in depths[n:]]
        drawn = quantiles(torch.cat([left, rows[n:]]), _on([*self.draws[1:], *own], rows.device))
        return torch.cat([rows[:n].gather(1, tokens[:, None])[:, 0].double(), drawn.double()])

    def take(self, numbers: Sequence[float]) -> None:
        """Take the numbers of `compute` when they are on the host."""
        n = 0 if self.draft.dist is None else len(self.draft.dist)
        self.chances, self.residuals = [*numbers[:n]], [int(token) for token in numbers[n : 2 * n]]
        self.choices = {node: int(token) for node, token in enumerate(numbers[2 * n :], n - 1)}

    def choice(self, node: int) -> int:
        if node not in self.choices:
            return super().choice(node)
        return _sound(self.choices[node])

    def prob(self, node: int) -> float:
        if not self.chances:
            return super().prob(node)
        if isnan(self.chances[node]):
            raise no_token()
        return self.chances[node]

    def residual(self, node: int) -> int:
        """A token from the normalised (p - q)+ at the parent of `node`; from p if rounding leaves nothing."""
        rng = self.request.rng
        if not self.residuals or peek(rng, 1) != [self.draws[node + 1]]:  # the generator has moved meanwhile
            return super().residual(node)
        rng.random()
        return _sound(self.residuals[node])


def read_all(scores: Sequence[DeviceScores]) -> None:
    """Read the numbers of all scores from the device, which is the only wait."""
    if not scores:
        return
    parts = [one.compute() for one in scores]
    numbers = torch.cat(parts).tolist()
    for one, part in zip(scores, parts, strict=True):
        one.take(numbers[: len(part)])
        del numbers[: len(part)]


def quantiles(p: Tensor, uniforms: Tensor) -> Tensor:
    """The token at a quantile of each row of `p`, shape (rows, vocabulary); -1 where that is no distribution.

    As `distributions.draw`: in the vocabulary's order, and with a probability above 0 whatever is rounded.
    """
    sums = p.cumsum(-1, dtype=torch.float64)
    total = sums[:, -1:]
    drawn = torch.searchsorted(sums, total * uniforms[:, None], right=True)[:, 0]
    tokens = torch.minimum(drawn, (sums < total).sum(-1))
    return torch.where(total[:, 0] > 0, tokens, -1)


def depths_of(draft: Draft) -> list[int]:
    """How many tokens lead from the text to each place: 0 after the text, then one number for each node."""
    depths = [0]
    for parent in draft.parents:
        depths.append(depths[parent + 1] + 1)
    return depths


def peek(rng: Random, n: int) -> list[float]:
    """The next numbers of a generator, which stay in it."""
    state = rng.getstate()
    numbers = [rng.random() for _ in range(n)]
    rng.setstate(state)
    return numbers


def _sound(token: int) -> int:
    if token < 0:
        raise no_token()
    return token


def _row(row: object) -> Tensor:
    return torch.as_tensor(cast("Tensor", row))


def _on(numbers: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).to(device, non_blocking=True)

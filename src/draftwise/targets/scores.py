"""The target's scores of every node of a draft, for greedy decoding and for sampling."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core.drafts import Draft
from ..core.request import Request
from ..core.sampling import Sampling
from ..models.distributions import (
    NO_TOKEN,
    Chain,
    array_of,
    draw,
    in_numpy,
    no_token,
    top_token,
    warp,
    warped,
)


def overlaps(draft: Draft, logits: Tensor) -> list[float]:
    """1 - TV between the raw distributions of target and drafter at every drafted node.

    Computed on the device. `logits` of shape (1 + nodes, vocabulary) are the target's after the last
    committed token and after each node. Without the drafter's rows the drafter counts as one-hot: the overlap
    is the target's probability of the token. That of a sibling of a chain with rows is what its token adds,
    (p - q)+.
    """
    above = torch.tensor(draft.parents, device=logits.device) + 1
    p = logits[above].float().softmax(-1)
    tokens = torch.tensor(draft.tokens, device=logits.device)[:, None]
    own = p.gather(1, tokens)[:, 0]
    if (given := draft.rows) is None:
        return cast("list[float]", own.tolist())
    rows = given if isinstance(given, Tensor) else torch.stack([torch.as_tensor(row) for row in given])
    q = rows.to(p.device).float().softmax(-1)
    n, shared = len(q), min(p.shape[-1], q.shape[-1])  # tokens in one vocabulary only have no overlap
    if draft.parents[:n] != tuple(range(-1, n - 1)):  # a tree of picked nodes
        return cast("list[float]", own.tolist())
    chain = torch.minimum(p[:n, :shared], q[:, :shared]).sum(-1)
    ids, beside = tokens[n:].clamp(max=q.shape[-1] - 1), above[n:].clamp(max=n - 1)
    drafted = q[beside].gather(1, ids)[:, 0] * ((above[n:] < n) & (tokens[n:, 0] < q.shape[-1]))
    return cast("list[float]", torch.cat([chain, (own[n:] - drafted).clamp(min=0)]).tolist())


def plain(sampling: Sampling) -> bool:
    """Whether decoding is greedy without settings that change the distribution."""
    penalised = sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty
    return sampling.greedy and not penalised and not sampling.processors


def top(row: Tensor, n: int) -> tuple[tuple[int, float], ...]:
    """The `n` most likely tokens of a row of logits, shape (vocabulary,), with their log-probabilities."""
    values, tokens = row.float().log_softmax(-1).topk(min(n, len(row)))
    return tuple(zip(tokens.tolist(), values.tolist(), strict=True))


class RawScores:
    """What is read of the raw logits of a draft's nodes, however tokens are chosen."""

    __slots__ = ("draft", "logits")

    def __init__(self, draft: Draft, logits: Tensor) -> None:
        self.draft, self.logits = draft, logits

    def logprob(self, node: int, token: int) -> float:
        return float(self.logits[node + 1].float().log_softmax(-1)[token])

    def top(self, node: int, n: int) -> tuple[tuple[int, float], ...]:
        return top(self.logits[node + 1], n)

    def overlaps(self) -> list[float]:
        return overlaps(self.draft, self.logits)


class GreedyScores(RawScores):
    """Greedy decoding without settings that change the distribution: the most likely token of each node.

    On the host the argmax of a row is computed on request, since rows after a rejection are never needed; on
    other devices `choices` were computed for the whole batch, in one transfer.
    """

    __slots__ = ("choices", "rows")

    def __init__(self, draft: Draft, logits: Tensor, choices: Sequence[int] | None) -> None:
        super().__init__(draft, logits)
        self.choices = choices
        self.rows = in_numpy(logits) if choices is None else None

    def choice(self, node: int) -> int:
        if self.choices is not None:
            token = self.choices[node + 1]
            known = token != NO_TOKEN
        else:
            row = self.rows[node + 1]  # type: ignore[index]
            token = int(row.argmax())
            known = row[token] > -inf  # the maximum of a row with NaN is NaN
        if not known:
            raise no_token()
        return token

    def prob(self, node: int) -> float:
        return float(self.choice(self.draft.parents[node]) == self.draft.tokens[node])

    def residual(self, node: int) -> int:
        """The most likely token: its probability is 1, so the residual distribution is the same."""
        return self.choice(self.draft.parents[node])

    def chance(self, node: int, token: int) -> float:
        return float(self.choice(node) == token)

    def distributions(self, nodes: Sequence[int]) -> None:
        """None, since the distributions are one-hot."""


class SampledScores(RawScores):
    """The processed distribution of every node; with greedy decoding its processed logits instead.

    A softmax rounds: logits that differ may get the same probability.

    All nodes are computed at once; if a processor depends on the history, each on request. Such a processor
    is called once per committed token, in order, with the committed prefix, exactly as in plain decoding; so
    a processor with a state (a grammar) stays correct.

    On the host NumPy reads the distributions: an operation of PyTorch on one row takes most of its time to
    start. On other devices `DeviceScores` needs a single read.
    """

    __slots__ = (
        "_distributions",
        "chain",
        "greedy",
        "host",
        "request",
        "rows",
        "start",
    )

    def __init__(self, request: Request, draft: Draft, logits: Tensor, chain: Chain) -> None:
        super().__init__(draft, logits)
        self.request, self.chain = request, chain
        self.start = len(request.tokens)  # scores are used after their round is committed
        self.greedy = request.sampling.greedy
        self._distributions: dict[int, Tensor] = {}
        self.rows = None if chain.historic else self._warped(logits)
        self.host = self.rows.numpy() if self.rows is not None and self.rows.device.type == "cpu" else None

    def choice(self, node: int) -> int:
        if self.greedy:
            return top_token(self._distribution(node))
        p = self._distribution(node) if self.host is None else self.host[node + 1]
        return draw(p, self.request.uniform(self.request.position + len(self._path(node))))

    def prob(self, node: int) -> float:
        parent, token = self.draft.parents[node], self.draft.tokens[node]
        if self.greedy:
            return float(top_token(self._distribution(parent)) == token)
        p = self._chance(parent, token)
        if isnan(p):
            raise no_token()
        return p

    def residual(self, node: int) -> int:
        """A token from the normalised (p - q)+ at the parent of `node`; from p if rounding leaves nothing."""
        parent = self.draft.parents[node]
        if self.greedy:
            return top_token(self._distribution(parent))
        q = self.draft.dist[node]  # or an array of NumPy
        p: Any
        left: Any
        if self.host is None:
            p = self._distribution(parent)
            left = (p - torch.as_tensor(q).to(p.device)).clamp_(min=0)
        else:
            p = self.host[parent + 1]
            left = np.maximum(p - array_of(q), 0)
        return draw(left if left.any() else p, self.request.rng.random())

    def chance(self, node: int, token: int) -> float:
        if self.greedy:
            return float(self._distribution(node).argmax() == token)
        return self._chance(node, token)

    def distributions(self, nodes: Sequence[int]) -> Tensor | None:
        """The distributions after `nodes`, shape (nodes, vocabulary), float32; None if they are one-hot."""
        if self.greedy:
            return None
        return torch.stack([self._distribution(node) for node in nodes])

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(self.draft.tokens[node])
            node = self.draft.parents[node]
        return path[::-1]

    def _chance(self, node: int, token: int) -> float:
        if self.host is not None:
            return float(self.host[node + 1, token])
        return float(self._distribution(node)[token])

    def _distribution(self, node: int) -> Tensor:
        if self.rows is not None:
            return self.rows[node + 1]
        if node not in self._distributions:
            history = [*self.request.tokens[: self.start], *self._path(node)]
            ids: Any = torch.tensor([history]).to(self.logits.device, non_blocking=True)
            # A copy: a processor may write to its input, and these rows are needed unchanged.
            row = self.chain.historic(ids, self.logits[node + 1][None].to(torch.float32, copy=True))
            self._distributions[node] = self._warped(row)[0]
        return self._distributions[node]

    def _warped(self, logits: Tensor) -> Tensor:
        """The distributions of some rows, or their logits if the most likely token is all that counts."""
        return (warped if self.greedy else warp)(self.chain.warpers, logits)

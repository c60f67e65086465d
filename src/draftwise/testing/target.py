"""A numpy target with a known distribution: every test of the loop runs offline in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.drafts import Draft, Verdict
from ..core.passes import TargetInfo
from ..core.request import Request
from ..core.roles import Scores
from .distributions import Distribution, Vector, draw, shape, softmax


class SimScores:
    """The exact distribution after every node of one draft."""

    def __init__(self, distribution: Distribution, request: Request, draft: Draft) -> None:
        self.distribution, self.request, self.draft = distribution, request, draft
        self.start = len(request.tokens)  # scores outlive the commit of their round
        self.rows: dict[int, Vector] = {}

    def _history(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(self.draft.tokens[node])
            node = self.draft.parents[node]
        return [*self.request.tokens[: self.start], *reversed(path)]

    def row(self, node: int) -> Vector:
        """The processed distribution after `node`, shape (vocabulary,)."""
        if node not in self.rows:
            request, history = self.request, self._history(node)
            self.rows[node] = shape(
                self.distribution(history), history, request.prompt_length, request.sampling
            )
        return self.rows[node]

    def choice(self, node: int) -> int:
        """The target's own token after `node`."""
        position = len(self._history(node)) - self.request.prompt_length
        return draw(self.row(node), self.request.uniform(position))

    def prob(self, node: int) -> float:
        """The target's probability of the drafted token `node`."""
        return float(self.row(self.draft.parents[node])[self.draft.tokens[node]])

    def residual(self, node: int) -> int:
        """A token from (p - q)+ at the parent of `node`; p itself if nothing is left."""
        p = self.row(self.draft.parents[node])
        rest = np.maximum(p - self.draft.dist[node], 0.0)
        return draw(rest if rest.sum() > 0 else p, self.request.rng.random())

    def logprob(self, node: int, token: int) -> float:
        """Log-probability under the raw distribution."""
        history = self._history(node)
        return float(np.log(softmax(self.distribution(history))[token]))

    def top(self, node: int, n: int) -> tuple[tuple[int, float], ...]:
        """The `n` most likely tokens under the raw distribution."""
        logs = np.log(softmax(self.distribution(self._history(node))))
        return tuple((int(token), float(logs[token])) for token in np.argsort(-logs, kind="stable")[:n])

    def chance(self, node: int, token: int) -> float:
        """The target's probability of `token` after `node`."""
        return float(self.row(node)[token])

    def distributions(self, nodes: Sequence[int]) -> Vector | None:
        """The distributions after `nodes`, shape (nodes, vocabulary); None where they are one-hot."""
        if self.request.sampling.greedy:
            return None
        return np.stack([self.row(node) for node in nodes])

    def overlaps(self) -> list[float]:
        """1 - TV of the raw distributions at each drafted node; in a tree, or without rows, its
        probability."""
        shared = []
        for node, token in enumerate(self.draft.tokens):
            p = softmax(self.distribution(self._history(self.draft.parents[node])))
            if self.draft.rows is None or not self.draft.is_chain:
                shared.append(float(p[token]))
            else:
                shared.append(float(np.minimum(p, softmax(self.draft.rows[node])).sum()))
        return shared


class SimTarget:
    """A target whose next-token logits are a plain function of the history.

    Examples:
        >>> from draftwise import Loop, Sampling
        >>> target, plain = SimTarget(markov([[0.0, 1.0], [1.0, 0.0]]), 2), method("none", [])
        >>> loop = Loop(target, {}, plain.policy, plain.recorder)
        >>> [round.tokens for round in loop.run([[0]], Sampling(max_new_tokens=2))]
        [(1,), (0,)]
    """

    def __init__(self, distribution: Distribution, vocab_size: int, *, max_length: int = 1 << 30) -> None:
        self.distribution, self.vocab_size, self.max_length = distribution, vocab_size, max_length
        self.passes = 0
        self.info = TargetInfo()

    def open(self, request: Request) -> None:
        """Nothing to prepare."""

    def verify(self, batch: Sequence[tuple[Request, Draft]]) -> list[Scores]:
        """One pass for the whole batch."""
        self.passes += 1
        return [SimScores(self.distribution, request, draft) for request, draft in batch]

    def read(self, request: Request, others: Sequence[Request]) -> bool:
        """No pieces: reading a prompt costs nothing."""
        return False

    def commit(self, batch: Sequence[tuple[Request, Draft, Verdict]]) -> None:
        """Nothing to trim."""

    def close(self, request: Request) -> None:
        """Nothing to free."""

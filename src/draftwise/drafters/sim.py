"""A numpy drafter with a known law, for tests and simulations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..laws import Law, draw, softmax
from ..stops import stop
from ..types import Draft, Job, Request, Signals


class SimDrafter:
    """Drafts from a law of its own: sampled when the request samples, else the likeliest token."""

    def __init__(self, law: Law, *, sampled: bool | None = None) -> None:
        self.law, self.sampled = law, sampled

    def hint(self, request: Request) -> float:
        """Always ready."""
        return 1.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job."""
        return [self._chain(job) for job in jobs]

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """The request itself is all the state there is."""

    def close(self, request: Request) -> None:
        """Nothing to free."""

    def _chain(self, job: Job) -> Draft:
        sampled = not job.request.sampling.greedy if self.sampled is None else self.sampled
        sampled = sampled and not job.picked
        history = list(job.request.tokens)
        tokens, probs, rows, signals = [], [], [], []
        joint, previous = 1.0, None
        for i in range(job.length):
            q = softmax(self.law(history))
            token = draw(q, job.request.rng.random()) if sampled else int(q.argmax())
            tokens.append(token)
            history.append(token)
            probs.append(float(q[token]))
            rows.append(q)
            second, first = np.sort(q)[-2:]
            entropy = float(-(q * np.log(np.maximum(q, 1e-300))).sum())
            signals.append(Signals(float(first), float(second), entropy, probs[-1]))
            joint *= probs[-1]
            if stop(job.stop_at(i), signals[-1], position=i, previous=previous, joint=joint):
                break
            previous = signals[-1]
        return Draft.chain(tokens, probs=probs, dist=rows if sampled else None, signals=signals)

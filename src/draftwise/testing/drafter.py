"""A numpy drafter with a known distribution, for tests and simulations."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np

from ..core.drafts import Draft, Job, Signals, after
from ..core.outcomes import Grade
from ..core.request import Request
from ..core.roles import GradeJob
from ..core.stops import TOP, factor, stop
from .distributions import Distribution, Vector, draw, softmax


class SimDrafter:
    """Drafts from a distribution of its own: sampled when the request samples, else the most likely token.

    The distribution after a text is also what it has for a hidden state there.
    """

    hidden_states = True  # for stop rules that read them

    def __init__(self, distribution: Distribution, *, sampled: bool | None = None) -> None:
        self.distribution, self.sampled = distribution, sampled

    def hint(self, request: Request) -> float:
        """Always ready."""
        return 1.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job."""
        return [self._chain(job) for job in jobs]

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """One chain per job, after these tokens."""
        return [self._chain(after(job, tokens)) for job, tokens in zip(jobs, written, strict=True)]

    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade per committed token, from the distribution after the text before it."""
        return [[self._grade(job, k) for k in range(len(job.request.tokens) - job.start)] for job in jobs]

    def _grade(self, job: GradeJob, k: int) -> Grade:
        tokens, at = job.request.tokens, job.start + k
        distribution = softmax(self.distribution(tokens[:at]))
        x, pick = tokens[at], int(distribution.argmax())
        sampled = self._samples(job.request) and not job.request.deterministic
        q = distribution if sampled else np.eye(len(distribution))[pick]
        accept = min(1.0, float(q[x]) / job.probs[k])
        signals = _signals(distribution, x if sampled else pick, at - job.request.prompt_length)
        if job.request.sampling.greedy:  # the target's distribution is one-hot
            return Grade(accept, accept, signals)
        overlap = nan if job.distributions is None else float(np.minimum(job.distributions[k], q).sum())
        return Grade(accept, overlap, signals)

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """The request itself is all the state there is."""

    def close(self, request: Request) -> None:
        """Nothing to free."""

    def _chain(self, job: Job) -> Draft:
        sampled = self._samples(job.request) and not job.deterministic
        history = list(job.request.tokens)
        tokens, probs, rows, logits, signals = [], [], [], [], []
        joint, previous = 1.0, None
        for i in range(job.length):
            logits.append(self.distribution(history))
            q = softmax(logits[-1])
            token = draw(q, job.request.rng.random()) if sampled else int(q.argmax())
            tokens.append(token)
            history.append(token)
            probs.append(float(q[token]))
            rows.append(q)
            signals.append(_signals(q, token, job.request.position + i))
            rule = job.stop_at(i)
            joint *= factor(rule, signals[-1], position=i)
            if stop(rule, signals[-1], position=i, previous=previous, joint=joint):
                break
            previous = signals[-1]
        return Draft.chain(
            tokens,
            probs=probs,
            dist=rows if sampled else None,
            signals=signals,
            rows=logits if job.rows else None,
        )

    def _samples(self, request: Request) -> bool:
        return not request.sampling.greedy if self.sampled is None else self.sampled


def _signals(q: Vector, token: int, place: int) -> Signals:
    top = tuple(np.sort(q)[: -TOP - 1 : -1].tolist())
    entropy = float(-(q * np.log(np.maximum(q, 1e-300))).sum())
    return Signals(top[0], top[1], entropy, float(q[token]), place, top, q)

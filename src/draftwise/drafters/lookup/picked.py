"""What drafters that look text up have in common: texts by request, and deterministic drafts from counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from math import log
from typing import Generic, TypeVar

from ...core.drafts import Draft, Job, Signals
from ...core.request import Request
from ...core.roles import Drafter
from ...core.stops import factor, needs, stop

NOVEL = 0.5
T = TypeVar("T")


class LookupDrafter(Drafter, Generic[T]):
    """A drafter that keeps a `T` for the text of each request."""

    has_probabilities = False

    def __init__(self) -> None:
        self.texts: dict[int, T] = {}

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one chain per job, of the job's full length unless a stop rule fires or nothing matches."""
        return [self._chain(job) for job in jobs]

    def close(self, request: Request) -> None:
        self.texts.pop(request.id, None)

    def _chain(self, job: Job, written: Sequence[int] = ()) -> Draft:
        text = self.texts.get(job.request.id)
        return Draft() if text is None else chain(job, self._steps(text, job, written))

    @abstractmethod
    def _steps(self, text: T, job: Job, written: Sequence[int]) -> Iterable[tuple[int, Signals]]:
        """Yield the tokens that follow a text and these tokens, with their signals."""


class ContinuingDrafter(LookupDrafter[T]):
    """A lookup that can also draft after tokens that are not committed."""

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """Draft one chain per job after these tokens, which are not added to its counts."""
        return [self._chain(job, tokens) for job, tokens in zip(jobs, written, strict=True)]


def chain(job: Job, steps: Iterable[tuple[int, Signals]]) -> Draft:
    """Draft tokens from `steps` until the job's length, a stop rule, or the end of the walk.

    The token that triggers a rule is kept. The draft's probabilities are the `chosen` of each step: the
    drafter's own estimates.
    """
    placed = "place" in needs(job.stops)
    tokens: list[int] = []
    signals: list[Signals] = []
    joint = 1.0
    for position, (token, now) in enumerate(islice(steps, job.length)):
        if placed:
            now = replace(now, place=job.request.position + position)
        previous = signals[-1] if signals else None
        tokens.append(token)
        signals.append(now)
        rule = job.stop_at(position)
        joint *= factor(rule, now, position=position)
        if rule.rule != "never" and stop(rule, now, position=position, previous=previous, joint=joint):
            break
    return Draft.chain(tokens, probs=[one.chosen for one in signals], signals=signals)


def share(count: int, total: int) -> float:
    """Return the probability of a continuation seen `count` times in `total`: 2/3 for one of one, not 1.

    Half a count (`NOVEL`) is reserved for unseen tokens (Krichevsky and Trofimov 1981).
    """
    return count / (total + NOVEL)


def tally(counts: Collection[int]) -> Signals:
    """Return the signals of a node whose most frequent continuation is drafted.

    `counts` has one positive number per continuation seen; in the entropy, in nats, the half count for all
    unseen tokens counts as one more token.
    """
    total = sum(counts) + NOVEL
    *_, second, first = sorted((NOVEL, *counts))
    entropy = log(total) - (sum([n * log(n) for n in counts]) + NOVEL * log(NOVEL)) / total
    return Signals(first / total, second / total, entropy, first / total)

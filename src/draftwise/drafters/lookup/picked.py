"""Turns a walk over likely next tokens into a picked draft, within a job's length and stop rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from math import log

from ...core.drafts import Draft, Job, Signals
from ...core.stops import factor, needs, stop


def chain(job: Job, steps: Iterable[tuple[int, Signals]]) -> Draft:
    """Take tokens from `steps` until the job's length, a stop rule, or the end of the walk.

    The token that triggers a rule is kept. The draft's probabilities are the `chosen` of each step: the
    drafter's own estimates.
    """
    placed = "place" in needs(job.stops)
    tokens: list[int] = []
    probs: list[float] = []
    signals: list[Signals] = []
    previous: Signals | None = None
    joint = 1.0
    for position, (token, now) in enumerate(islice(steps, job.length)):
        if placed:
            now = replace(now, place=job.request.position + position)
        tokens.append(token)
        probs.append(now.chosen)
        signals.append(now)
        rule = job.stop_at(position)
        joint *= factor(rule, now, position=position)
        if rule.rule != "never" and stop(rule, now, position=position, previous=previous, joint=joint):
            break
        previous = now
    return Draft.chain(tokens, probs=probs, signals=signals)


def share(count: int, total: int) -> float:
    """The probability of a continuation seen `count` times in `total`: 2/3 for one of one, not 1.

    Half a count is reserved for unseen tokens (Krichevsky and Trofimov 1981).
    """
    return count / (total + NOVEL)


def tally(counts: Collection[int]) -> Signals:
    """The signals of a node whose most frequent continuation is drafted.

    `counts` has one positive number per continuation seen; in the entropy, in nats, the half count for all
    unseen tokens counts as one more token.
    """
    total = sum(counts) + NOVEL
    *_, second, first = sorted((NOVEL, *counts))
    entropy = log(total) - (sum([n * log(n) for n in counts]) + NOVEL * log(NOVEL)) / total
    return Signals(first / total, second / total, entropy, first / total)


NOVEL = 0.5

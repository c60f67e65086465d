"""A model drafter on a sampled text: the probability that its draft of each token was accepted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.outcomes import Grade
from ...core.roles import Drafter, GradeJob, Grader
from .files import Answers
from .lookups import Given, Tokens
from .reading import CHUNK, Text


def answers(drafter: Drafter, text: Text, length: int, ids: Iterator[int]) -> tuple[Answers, Given | None]:
    """A model's grades of every token, including those beyond the end; no drafts, since these are random."""
    if not isinstance(drafter, Grader):
        raise TypeError("a drafter that does not grade itself is asked for its drafts instead")
    request, grades = text.request(next(ids), 0), list[Grade]()
    drafter.observe(request, request.tokens)
    for number, scores in enumerate(text.scores):
        start = number * CHUNK
        end = min(start + CHUNK, len(text.tokens))
        new = text.tokens[start:end]
        request.tokens = request.tokens + new
        nodes = range(-1, len(new) - 1)
        probs = [scores.chance(node, token) for node, token in zip(nodes, new, strict=True)]
        job = GradeJob(request, len(text.prompt) + start, probs, scores.distributions(nodes))
        (found,) = drafter.grade([job])
        grades += found
        drafter.observe(request, new)
    hint = np.full(text.committed, drafter.hint(request))
    drafter.close(request)
    empty = np.zeros((text.committed, length), np.int32)
    made = Tokens().answers(empty, empty, hint)
    accept, shared = (np.array([getattr(g, key) for g in grades]) for key in ("accept", "overlap"))
    fields = {key: getattr(made, key) for key in ("tokens", "start", "count", "hint", "signals")}
    return Answers(**fields, accept=accept, shared=shared), None

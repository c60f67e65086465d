"""Records a model's drafts at every position of a text; one draft serves positions up to its first error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...core.roles import Drafter, GradeJob, Grader, Target
from ...errors import UserError
from .files import Answers
from .lookups import CLOSE, Given, Tokens, given
from .reading import Reader, Text

BATCH = 16  # drafts made in one batch
LONGEST = 64  # maximum matching tokens in one draft, so that a batch does not wait for one


@dataclass(frozen=True, slots=True)
class Stem:
    """One draft from `start` that matches the text up to `mismatch`; all positions in between share it."""

    start: int
    mismatch: int
    draft: Draft


def answers(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, target: Target | None = None
) -> tuple[Answers, Given | None]:
    """A model's drafts of up to `length` tokens; with a `target`, their raw overlaps too."""
    stems = sorted(_stems(drafter, text, length, ids, rows=target is not None), key=lambda s: s.start)
    reader = Reader(target, text, ids) if target is not None else None
    flat, n = Tokens(), text.committed
    start, count = np.zeros((n, length), np.int32), np.zeros((n, length), np.int32)
    for stem in stems:
        overlaps = reader.scores(stem.start, stem.draft).overlaps() if reader and stem.draft.tokens else ()
        first = flat.add(stem.draft, overlaps)
        for at in range(stem.start, stem.mismatch + 1):
            start[at] = first + at - stem.start
            left = len(stem.draft.tokens) - (at - stem.start)
            count[at] = np.minimum(np.arange(1, length + 1), left)
    if reader:
        reader.close()
    request = text.request(next(ids), 0)
    drafter.observe(request, request.tokens)
    carried, hint = given(drafter, request, 1), np.full(n, drafter.hint(request))
    drafter.close(request)
    return flat.answers(start, count, hint), carried


def _stems(drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, rows: bool) -> list[Stem]:
    """Drafts that cover every position, as few as the text allows."""
    whole = text.request(next(ids), text.committed)
    hits = _hits(drafter, text, whole)
    waiting, made = _plan(hits), list[Stem]()
    while waiting:
        waiting.sort(key=lambda span: span[1] - span[0])
        spans, waiting = waiting[:BATCH], waiting[BATCH:]
        for (start, end), draft in zip(
            spans, _draft(drafter, text, whole, spans, length, ids, rows=rows), strict=True
        ):
            stem = Stem(start, min(end, start + _same(draft.tokens, text.tokens[start:])), draft)
            made.append(stem)
            if stem.mismatch < end:  # a near tie may differ between token-by-token and batched passes
                waiting.append((stem.mismatch + 1, end))
    drafter.close(whole)
    return made


def _hits(drafter: Drafter, text: Text, whole: Request) -> list[bool]:
    """Where the model would draft the text's own token, from one pass over the text."""
    if not isinstance(drafter, Grader):
        raise TypeError("a drafter that does not grade itself is asked at every position instead")
    drafter.observe(whole, whole.tokens)
    (grades,) = drafter.grade([GradeJob(whole, len(text.prompt), [1.0] * text.committed)])
    return [grade.accept == 1.0 for grade in grades]


def _plan(hits: Sequence[bool]) -> list[tuple[int, int]]:
    """Spans (first, last) of positions that one draft covers: it ends at the first error."""
    spans, start = [], 0
    for at, hit in enumerate(hits):
        if not hit or at - start >= LONGEST or at == len(hits) - 1:
            spans.append((start, at))
            start = at + 1
    return spans


def _draft(
    drafter: Drafter,
    text: Text,
    whole: Request,
    spans: Sequence[tuple[int, int]],
    length: int,
    ids: Iterator[int],
    *,
    rows: bool,
) -> list[Draft]:
    """One draft per span, long enough for `length` tokens at its last position, within the budget."""
    wanted = [min(end - start + length, text.budget - 1 - start) for start, end in spans]
    views = [text.request(next(ids), start) for start, _ in spans]
    jobs = [Job(view, n, CLOSE, rows=rows) for view, n in zip(views, wanted, strict=True)]
    asked = [job for job in jobs if job.length > 0]
    _seat(drafter, whole, [job.request for job in asked])
    found = iter(drafter.draft(asked) if asked else ())
    drafts = [next(found) if job.length > 0 else Draft() for job in jobs]
    for view, draft in zip(views, drafts, strict=True):
        drafter.close(view)
        if draft.dist is not None or not draft.is_chain:
            raise UserError(
                "it draws its tokens or drafts trees, where a greedy trace needs its most likely chain"
            )
    return drafts


def _seat(drafter: Any, whole: Request, views: Sequence[Request]) -> None:
    """Copy a text's KV cache rows for its views, so that a causal LM need not prefill them again."""
    from ...drafters.neural.lm import LMDrafter
    from ...drafters.neural.place import Place

    if hasattr(drafter, "seat"):
        for view in views:
            drafter.seat(whole, view)
    if not isinstance(drafter, LMDrafter) or drafter.window or whole.id not in drafter.places:
        return  # with a window each position sees another text
    for view in views:
        drafter.rows.open(view.id)
        known = min(len(view.tokens), drafter.places[whole.id].base) - 1
        drafter.rows.share(drafter.rows.keys.index(view.id), drafter.rows.keys.index(whole.id), known)
        drafter.places[view.id] = Place(known)


def _same(drafted: Sequence[int], text: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(drafted, text, strict=False)) if a != b),
        min(len(drafted), len(text)),
    )

"""Records the drafts of heads, which draft from the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from random import Random
from typing import Any

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...core.roles import Target
from .drafts import (
    BATCH,
    CHUNK,
    READ_ALL,
    DraftTable,
    Text,
    TextReader,
    accepted_chances,
    check_chain,
    draft_one,
    find_given,
    named_errors,
)
from .files import RecordedDrafts


@dataclass(slots=True)
class TextCoupling:
    """Chooses the tokens of a sampled draft given the text, so that both together are as in live rounds.

    A live round accepts a drafted token with probability min(1, p / q) and replaces a rejected one by a token
    from (p - q)+. Read backwards from the text's token: it was drafted with probability min(1, q / p), else a
    token from (q - p)+ was drafted and rejected. What follows a rejected token is drawn from q.

    `accept` and `overlap` are the grade of the draft's first token: that probability, and the sum of
    min(p, q).
    """

    text: Text
    at: int
    rng: Random
    accept: float = 0.0
    overlap: float = 0.0

    def choose(self, drafted: Sequence[int], q: Any) -> int:
        """Return the next token of a draft made at `at`, of distribution `q` over the target's vocabulary."""
        from ...models.distributions import draw

        text, place = self.text, self.at + len(drafted)
        if list(drafted) != text.tokens[self.at : place]:
            return draw(q, self.rng.random())
        p, token = text.distribution(place).to(q.device), text.tokens[place]
        chances = float(p[token]), float(q[token])
        if not drafted:
            self.accept = min(1.0, chances[1] / chances[0]) if chances[0] > 0.0 else 1.0
            self.overlap = float(p.minimum(q).sum())
        if self.rng.random() * chances[0] < chances[1]:
            return token
        rejected = (q - p).clamp_(min=0.0)
        return draw(rejected if rejected.any() else q, self.rng.random())


def record_heads(
    drafters: Mapping[str, Any], text: Text, length: int, ids: Iterator[int], target: Target, *, overlap: bool
) -> dict[str, RecordedDrafts]:
    """Record the drafts that heads make from the target's hidden states at each position.

    A later token is drafted from the head's own states, so each position has a draft of its own; those of
    `BATCH` positions are made in one batch. The first has none: before the target has read the prompt there
    are no states.
    """
    if not drafters:
        return {}
    reader, n = TextReader(target, text, ids), text.committed
    for at in (*range(0, n, CHUNK), n):
        reader.scores(at, Draft())
    whole = reader.request
    for name, drafter in drafters.items():
        with named_errors(name):
            draft_one(drafter, Job(whole, 1, deterministic=True))  # reads the whole text
    graded = 0 if text.sampling.greedy else len(text.tokens)
    tables = {name: DraftTable(text, length, graded=graded) for name in drafters}
    scored = TextReader(target, text, ids) if overlap else None
    for first in range(1, n, BATCH):
        views = [text.request(next(ids), at) for at in range(first, min(first + BATCH, n))]
        for view in views:
            target.open(view)
        drafts = []
        for name, drafter in drafters.items():
            with named_errors(name):
                drafts.append(_draft_views(drafter, whole, views, length, tables[name], text, rows=overlap))
        for view in views:
            target.close(view)
        chains = [(at, draft) for at, of in enumerate(zip(*drafts, strict=True), first) for draft in of]
        overlaps = scored.chain_overlaps(chains) if scored else [()] * len(chains)
        for name, (at, draft), along in zip(cycle(drafters), chains, overlaps, strict=False):
            with named_errors(name):
                start = tables[name].add(draft, along, accepted_chances(at, draft, text))
                tables[name].place(at, start, len(draft.tokens))
    for one in (reader, scored):
        if one:
            one.close()
    for drafter in drafters.values():
        drafter.close(whole)
    return {name: table.build() for name, table in tables.items()}


def _draft_views(
    drafter: Any,
    whole: Request,
    views: Sequence[Request],
    length: int,
    table: DraftTable,
    text: Text,
    *,
    rows: bool,
) -> list[Draft]:
    """Draft at the end of each view of a text that the head has read."""
    jobs, couplings = [], list[TextCoupling]()
    for view in views:
        drafter.seat(whole, view)
        drafter.observe(view, view.tokens)
        table.hint[view.position] = drafter.hint(view)
        if (longest := min(length, view.remaining - 1)) > 0:
            jobs.append(Job(view, longest, READ_ALL, rows=rows))
            if not text.sampling.greedy:
                couplings.append(TextCoupling(text, view.position, view.rng))
                jobs[-1] = replace(jobs[-1], choose=couplings[-1].choose)
    drafts = drafter.draft(jobs) if jobs else []
    for coupling in couplings:
        table.accept[coupling.at], table.shared[coupling.at] = coupling.accept, coupling.overlap
    if couplings:  # what they were drawn from is in the choice
        drafts = [replace(draft, probs=(), dist=None) for draft in drafts]
    for job, draft in zip(jobs, map(check_chain, drafts), strict=True):
        if table.given is None and draft.tokens:
            table.given = find_given(drafter, job.request, job.length)
    for view in views:
        drafter.close(view)
    return [*drafts, *[Draft()] * (len(views) - len(jobs))]  # those at the budget's end are the last

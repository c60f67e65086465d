"""Records every drafter's drafts at each position of one text of the target's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle
from math import inf, isclose
from random import Random
from typing import Any

import numpy as np

from ...core.arms import NEVER, Stop
from ...core.drafts import Draft, Job, Signals, Verdict
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import Drafter, GradeJob, Grader, Scores, Target
from ...core.sampling import Sampling
from ...drafters.cascade import merged
from ...errors import UserError
from .files import FIELDS, Floats, Ints, RecordedDrafts

CHUNK = 32  # tokens of the text verified in one pass
BATCH = 16  # drafts, or positions of a head, in one batch
LONGEST = 64  # maximum matching tokens in one draft, so that a batch does not wait for one

READING: Mapping[str, Stop] = {
    "": NEVER,
    "top1": Stop("max-confidence", -1.0),
    "top2": Stop("logit-margin", -2.0),
    "entropy": Stop("svip", inf),
    "chosen": Stop("confidence", -1.0),
}
"""For each signal a rule that reads it (`top2` includes `top1`) and never stops a draft."""

READ_ALL = tuple(READING[name] for name in FIELDS)  # rules that together read all signals

Given = dict[str, list[str] | None]
"""For each signal that a rule may read, the signals that a draft then has; None for none at all."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's text: `committed` of `tokens` are the answer, the rest lies beyond its end.

    `scores` are the target's scores of the text if it was sampled, one for each `CHUNK` of it.
    """

    prompt: list[int]
    tokens: list[int]
    committed: int
    budget: int
    ended: bool
    sampling: Sampling
    scores: list[Scores] = field(default_factory=list)

    def request(self, key: int, upto: int) -> Request:
        """Make a request with the first `upto` tokens written."""
        tokens = self.prompt + self.tokens[:upto]
        sampling = replace(self.sampling, max_new_tokens=self.budget)
        return Request(key, tokens, len(self.prompt), sampling, Random(key), Random(key))

    def chance(self, at: int, token: int) -> float:
        """Return the target's probability of a token at a position; 1 or 0 for a greedy text."""
        if self.sampling.greedy:
            return float(token == self.tokens[at])
        return self.scores[at // CHUNK].chance(at % CHUNK - 1, token)

    def distribution(self, at: int) -> Any:
        """Return the distribution that the token at a position of a sampled text was drawn from."""
        rows: Any = self.scores[at // CHUNK].distributions([at % CHUNK - 1])
        return rows[0]

    def matching(self, at: int, tokens: Sequence[int]) -> int:
        """Return how many first tokens of a draft made at `at` match the text."""
        pairs = enumerate(zip(tokens, self.tokens[at:], strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(self.tokens) - at))


class TextReader:
    """The target reading one text, and drafts along it, from left to right."""

    def __init__(self, target: Target, text: Text, ids: Iterator[int]) -> None:
        self.target, self.text = target, text
        self.request = text.request(next(ids), 0)
        target.open(self.request)

    def scores(self, at: int, draft: Draft) -> Scores:
        """Return the target's scores of a draft made at position `at`, which never decreases."""
        request, text = self.request, self.text
        request.tokens = text.prompt + text.tokens[:at]
        (scores,) = self.target.verify([(request, draft)])
        self.target.commit([(request, draft, Verdict((), 0))])
        request.rounds += 1
        return scores

    def path_overlaps(self, at: int, drafts: Sequence[Draft]) -> list[list[float]]:
        """Return the raw overlaps along each chain made at position `at`, from one pass over their tree."""
        tree = merged([Draft.chain(draft.tokens) for draft in drafts], sum(len(d.tokens) for d in drafts))
        overlaps = self.scores(at, tree).overlaps() if tree.tokens else ()
        nodes = {pair: i for i, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        paths = []
        for draft in drafts:
            node, path = -1, list[float]()
            for token in draft.tokens:
                node = nodes[node, token]
                path.append(overlaps[node])
            paths.append(path)
        return paths

    def chain_overlaps(self, chains: Sequence[tuple[int, Draft]]) -> list[list[float]]:
        """Return the raw overlaps along chains, each with the position where it was made, in their order.

        One pass reads them all, as a tree with the text as its trunk.
        """
        try:
            return self._tree_overlaps(chains)
        except UserError:  # the target cannot read trees
            return [self._tree_overlaps([chain])[0] for chain in chains]

    def _tree_overlaps(self, chains: Sequence[tuple[int, Draft]]) -> list[list[float]]:
        from ...targets.scores import overlaps

        first = chains[0][0]
        paths = [[*self.text.tokens[first:at], *draft.tokens[:-1]] for at, draft in chains]
        tree = merged(map(Draft.chain, paths), sum(map(len, paths)))
        scores: Any = self.scores(first, tree)  # of a target whose hidden states are read
        nodes = {pair: i for i, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        results = []
        for path, (_, draft) in zip(paths, chains, strict=True):
            places = list(accumulate(path, lambda node, token: nodes[node, token], initial=-1))
            rows = scores.logits[[place + 1 for place in places[len(places) - len(draft.tokens) :]]]
            results.append(overlaps(draft, rows) if draft.tokens else [])
        return results

    def chunks(self, upto: int) -> list[Scores]:
        """Return its scores of the text itself, and close the request."""
        starts = range(0, upto, CHUNK)
        chunks = [self.scores(at, Draft.chain(self.text.tokens[at : min(at + CHUNK, upto)])) for at in starts]
        self.close()
        return chunks

    def close(self) -> None:
        """Close the request."""
        self.target.close(self.request)


@dataclass(slots=True)
class Columns:
    """Drafts one after the other in flat columns."""

    tokens: list[int] = field(default_factory=list)
    signals: list[Signals] = field(default_factory=list)
    overlaps: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, draft: Draft, overlaps: Sequence[float] = (), chances: Sequence[float] = ()) -> int:
        """Append a draft; returns where it starts."""
        if len(draft.signals) != len(draft.tokens):
            raise UserError("its drafts carry no stop signals, which a trace needs for every drafted token")
        first = len(self.tokens)
        self.tokens += draft.tokens
        self.signals += draft.signals
        self.overlaps += overlaps
        self.chances += chances
        return first

    def table(self, start: Ints, count: Ints, hint: Floats, **grades: Floats) -> RecordedDrafts:
        """Return these drafts, with their start at each position."""
        rows = [(s.top1, s.top2, s.entropy, s.chosen) for s in self.signals]
        return RecordedDrafts(
            tokens=np.array(self.tokens, np.int32),
            start=start,
            count=count,
            hint=hint,
            signals=np.array(rows, np.float64).reshape(-1, len(FIELDS)),
            overlap=np.array(self.overlaps, np.float64),
            chance=np.array(self.chances, np.float64),
            **grades,
        )


# -- lookups --------------------------------------------------------------------------------------------


def record_lookup(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, target: Target | None = None
) -> tuple[RecordedDrafts, Given | None]:
    """Record a lookup's drafts of at most 1, 2, ... `length` tokens; with a `target`, their raw overlaps too.

    Equal drafts of a position are stored once.
    """
    drafts, hints, given = _ask(drafter, text, length, next(ids))
    reader = TextReader(target, text, ids) if target is not None else None
    flat, n = Columns(), text.committed
    start, count = np.zeros((n, length), np.int32), np.zeros((n, length), np.int32)
    for at, row in enumerate(drafts):
        longest = list(dict.fromkeys(_without_prefixes(row)))
        overlaps = reader.path_overlaps(at, longest) if reader else [()] * len(longest)
        places = {
            draft: flat.add(draft, along, _chances(at, draft, text))
            for draft, along in zip(longest, overlaps, strict=True)
        }
        for k, draft in enumerate(row):
            count[at, k] = len(draft.tokens)
            start[at, k] = next(place for whole, place in places.items() if _begins(whole, draft))
    if reader:
        reader.close()
    return flat.table(start, count, np.array(hints, np.float64)), given


def _ask(
    drafter: Drafter, text: Text, length: int, key: int
) -> tuple[list[list[Draft]], list[float], Given | None]:
    """Return drafts by position and requested length, hints, and the signals that drafts have.

    Every length is requested: a shorter draft need not be the beginning of a longer one.
    """
    request, given = text.request(key, 0), None
    drafter.observe(request, request.tokens)
    drafts, hints = [], []
    for at in range(text.committed):
        view = replace(request, tokens=request.tokens + text.tokens[:at])
        hints.append(drafter.hint(view))
        drafts.append([_draft_one(drafter, Job(view, n, READ_ALL)) for n in range(1, length + 1)])
        given = given or find_given(drafter, view, length)
        drafter.observe(view, text.tokens[at : at + 1])
    drafter.close(request)
    return drafts, hints, given


def _draft_one(drafter: Drafter, job: Job) -> Draft:
    (draft,) = drafter.draft([job])
    return _checked(draft)


def _checked(draft: Draft) -> Draft:
    if draft.dist is not None or not draft.is_chain:
        raise UserError("it draws its tokens or drafts trees, where a trace needs one chain")
    return draft


def _without_prefixes(row: Sequence[Draft]) -> list[Draft]:
    """Return the drafts of one position, without those that are prefixes of others."""
    longest: list[Draft] = []
    for draft in sorted(row, key=lambda d: -len(d.tokens)):
        if not any(_begins(whole, draft) for whole in longest):
            longest.append(draft)
    return longest


def _begins(whole: Draft, draft: Draft) -> bool:
    n = len(draft.tokens)
    return whole.tokens[:n] == draft.tokens and whole.signals[:n] == draft.signals


def _chances(at: int, draft: Draft, text: Text) -> list[float]:
    """Return the target's probability of each token up to the first off the text; 0 beyond (never read)."""
    if text.sampling.greedy:
        return []
    n = min(text.matching(at, draft.tokens) + 1, len(draft.tokens), text.committed - at)
    return [text.chance(at + k, draft.tokens[k]) for k in range(n)] + [0.0] * (len(draft.tokens) - n)


def find_given(drafter: Drafter, view: Request, length: int) -> Given | None:
    """Return which signals the drafter's drafts have, by the signal that is read; None if it drafts nothing.

    Raises:
        UserError: a signal changes with what else is read.
    """
    whole = _draft_one(drafter, Job(view, length, READ_ALL, deterministic=True))
    if not whole.tokens:
        return None
    given: Given = {}
    for name, rule in READING.items():
        draft = _draft_one(drafter, Job(view, length, (rule,), deterministic=True))
        if draft.tokens != whole.tokens:
            raise UserError("its drafts change with the signals that are read")
        given[name] = _shared_signals(draft, whole) if draft.signals else None
    return given


def _shared_signals(draft: Draft, whole: Draft) -> list[str]:
    shared = []
    for name in FIELDS:
        pairs = [
            (getattr(a, name), getattr(b, name)) for a, b in zip(draft.signals, whole.signals, strict=True)
        ]
        if all(isclose(a, b, rel_tol=1e-3) for a, b in pairs):  # a model reads in passes of other widths
            shared.append(name)
        elif any(a for a, _ in pairs):
            raise UserError(f"its signal {name} changes with what else is read")
    return shared


# -- models ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stem:
    """One draft from `start` that matches the text up to `mismatch`; all positions in between share it."""

    start: int
    mismatch: int
    draft: Draft


def record_model(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, target: Target | None = None
) -> tuple[RecordedDrafts, Given | None]:
    """Record a model's drafts of up to `length` tokens; with a `target`, their raw overlaps too.

    One draft serves all positions up to its first error.
    """
    stems = sorted(_stems(drafter, text, length, ids, rows=target is not None), key=lambda s: s.start)
    reader = TextReader(target, text, ids) if target is not None else None
    flat, n = Columns(), text.committed
    start, count = np.zeros((n, length), np.int32), np.zeros((n, length), np.int32)
    for stem in stems:
        overlaps = reader.scores(stem.start, stem.draft).overlaps() if reader and stem.draft.tokens else ()
        first = flat.add(stem.draft, overlaps)
        for at in range(stem.start, stem.mismatch + 1):
            start[at] = first + at - stem.start
            count[at] = np.minimum(np.arange(1, length + 1), len(stem.draft.tokens) - (at - stem.start))
    if reader:
        reader.close()
    request = text.request(next(ids), 0)
    drafter.observe(request, request.tokens)
    given, hint = find_given(drafter, request, 1), np.full(n, drafter.hint(request))
    drafter.close(request)
    return flat.table(start, count, hint), given


def _stems(drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, rows: bool) -> list[Stem]:
    """Make drafts that cover every position, as few as the text allows."""
    whole = text.request(next(ids), text.committed)
    waiting, stems = _spans(_matches(drafter, text, whole)), list[Stem]()
    while waiting:
        waiting.sort(key=lambda span: span[1] - span[0])
        spans, waiting = waiting[:BATCH], waiting[BATCH:]
        drafts = _draft_spans(drafter, text, whole, spans, length, ids, rows=rows)
        for (start, end), draft in zip(spans, drafts, strict=True):
            stem = Stem(start, min(end, start + text.matching(start, draft.tokens)), draft)
            stems.append(stem)
            if stem.mismatch < end:  # a near tie may differ between token-by-token and batched passes
                waiting.append((stem.mismatch + 1, end))
    drafter.close(whole)
    return stems


def _matches(drafter: Drafter, text: Text, whole: Request) -> list[bool]:
    """Return where the model would draft the text's own token, from one pass over the text."""
    assert isinstance(drafter, Grader)  # others are recorded as lookups
    drafter.observe(whole, whole.tokens)
    (grades,) = drafter.grade([GradeJob(whole, len(text.prompt), [1.0] * text.committed)])
    return [grade.accept == 1.0 for grade in grades]


def _spans(matches: Sequence[bool]) -> list[tuple[int, int]]:
    """Return spans (first, last) of positions that one draft covers: it ends at the first error."""
    spans, start = [], 0
    for at, match in enumerate(matches):
        if not match or at - start >= LONGEST or at == len(matches) - 1:
            spans.append((start, at))
            start = at + 1
    return spans


def _draft_spans(
    drafter: Drafter,
    text: Text,
    whole: Request,
    spans: Sequence[tuple[int, int]],
    length: int,
    ids: Iterator[int],
    *,
    rows: bool,
) -> list[Draft]:
    """Make one draft per span, long enough for `length` tokens at its last position, within the budget."""
    lengths = [min(end - start + length, text.budget - 1 - start) for start, end in spans]
    views = [text.request(next(ids), start) for start, _ in spans]
    jobs = [Job(view, n, READ_ALL, rows=rows) for view, n in zip(views, lengths, strict=True) if n > 0]
    if hasattr(drafter, "seat"):  # it need not read the beginning again
        for job in jobs:
            drafter.seat(whole, job.request)
    answers = iter(drafter.draft(jobs) if jobs else ())
    drafts = [next(answers) if n > 0 else Draft() for n in lengths]
    for view, draft in zip(views, drafts, strict=True):
        drafter.close(view)
        _checked(draft)
    return drafts


# -- heads ----------------------------------------------------------------------------------------------


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


@dataclass(slots=True)
class HeadDrafts:
    """One head's drafts of a text, as they are recorded from left to right; grades if it was sampled."""

    start: Ints
    count: Ints
    hint: Floats
    accept: Floats
    shared: Floats
    columns: Columns = field(default_factory=Columns)
    given: Given | None = None

    def add(self, at: int, draft: Draft, overlaps: Sequence[float], chances: Sequence[float]) -> None:
        """Append the draft made at a position."""
        self.start[at] = self.columns.add(draft, overlaps, chances)
        self.count[at] = np.minimum(np.arange(1, self.count.shape[1] + 1), len(draft.tokens))


def record_heads(
    drafters: Mapping[str, Any], text: Text, length: int, ids: Iterator[int], target: Target, *, overlap: bool
) -> dict[str, tuple[RecordedDrafts, Given | None]]:
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
    whole, recorded = reader.request, dict[str, HeadDrafts]()
    for name, drafter in drafters.items():
        with named_errors(name):
            _draft_one(drafter, Job(whole, 1, deterministic=True))  # reads the whole text
        tables = np.zeros((n, length), np.int32), np.zeros((n, length), np.int32)
        graded = 0 if text.sampling.greedy else len(text.tokens)
        recorded[name] = HeadDrafts(*tables, np.zeros(n), np.zeros(graded), np.zeros(graded))
    scored = TextReader(target, text, ids) if overlap else None
    for first in range(1, n, BATCH):
        views = [text.request(next(ids), at) for at in range(first, min(first + BATCH, n))]
        for view in views:
            target.open(view)
        drafts = []
        for name, drafter in drafters.items():
            with named_errors(name):
                drafts.append(_draft_views(drafter, whole, views, length, recorded[name], text, rows=overlap))
        for view in views:
            target.close(view)
        chains = [(at, draft) for at, of in enumerate(zip(*drafts, strict=True), first) for draft in of]
        overlaps = scored.chain_overlaps(chains) if scored else [()] * len(chains)
        for name, (at, draft), along in zip(cycle(drafters), chains, overlaps, strict=False):
            with named_errors(name):
                recorded[name].add(at, draft, along, _chances(at, draft, text))
    for one in (reader, scored):
        if one:
            one.close()
    for drafter in drafters.values():
        drafter.close(whole)
    return {
        name: (d.columns.table(d.start, d.count, d.hint, accept=d.accept, shared=d.shared), d.given)
        for name, d in recorded.items()
    }


def _draft_views(
    drafter: Any,
    whole: Request,
    views: Sequence[Request],
    length: int,
    recorded: HeadDrafts,
    text: Text,
    *,
    rows: bool,
) -> list[Draft]:
    """Draft at the end of each view of a text that the head has read."""
    jobs, couplings = [], list[TextCoupling]()
    for view in views:
        drafter.seat(whole, view)
        drafter.observe(view, view.tokens)
        recorded.hint[view.position] = drafter.hint(view)
        if (longest := min(length, view.remaining - 1)) > 0:
            jobs.append(Job(view, longest, READ_ALL, rows=rows))
            if not text.sampling.greedy:
                couplings.append(TextCoupling(text, view.position, view.rng))
                jobs[-1] = replace(jobs[-1], choose=couplings[-1].choose)
    drafts = drafter.draft(jobs) if jobs else []
    for coupling in couplings:
        recorded.accept[coupling.at], recorded.shared[coupling.at] = coupling.accept, coupling.overlap
    if couplings:  # what they were drawn from is in the choice
        drafts = [replace(draft, probs=(), dist=None) for draft in drafts]
    for job, draft in zip(jobs, map(_checked, drafts), strict=True):
        if recorded.given is None and draft.tokens:
            recorded.given = find_given(drafter, job.request, job.length)
    for view in views:
        drafter.close(view)
    return [*drafts, *[Draft()] * (len(views) - len(jobs))]  # those at the budget's end are the last


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Turn any error of a drafter into a UserError that names it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"drafter {name}: {error}; leave it out of --drafters") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"drafter {name} failed ({reason}): leave it out of --drafters") from error


# -- models on sampled texts ----------------------------------------------------------------------------


def record_grades(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int]
) -> tuple[RecordedDrafts, Given | None]:
    """Record a model's grades of every token of a sampled text, including those beyond its end.

    Its drafts are random, and not recorded.
    """
    assert isinstance(drafter, Grader)  # others are recorded as lookups
    request, grades = text.request(next(ids), 0), list[Grade]()
    drafter.observe(request, request.tokens)
    for number, scores in enumerate(text.scores):
        start = number * CHUNK
        new = text.tokens[start : start + CHUNK]
        request.tokens = request.tokens + new
        nodes = range(-1, len(new) - 1)
        probs = [scores.chance(node, token) for node, token in zip(nodes, new, strict=True)]
        job = GradeJob(request, len(text.prompt) + start, probs, scores.distributions(nodes))
        grades += drafter.grade([job])[0]
        drafter.observe(request, new)
    hint = np.full(text.committed, drafter.hint(request))
    drafter.close(request)
    empty = np.zeros((text.committed, length), np.int32)
    accept, shared = np.array([grade.accept for grade in grades]), np.array([g.overlap for g in grades])
    return Columns().table(empty, empty, hint, accept=accept, shared=shared), None

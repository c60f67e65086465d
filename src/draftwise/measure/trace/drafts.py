"""Records every drafter's drafts at each position of one text of the target's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf, isclose
from operator import itemgetter
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
from .files import FIELDS, Given, RecordedDrafts

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
        tree, walks = merge_paths([draft.tokens for draft in drafts])
        overlaps = self.scores(at, tree).overlaps() if tree.tokens else ()
        return [[overlaps[node] for node in walk[1:]] for walk in walks]

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
        tree, walks = merge_paths([(*self.text.tokens[first:at], *d.tokens[:-1]) for at, d in chains])
        scores: Any = self.scores(first, tree)  # of a target whose hidden states are read
        results = []
        for walk, (_, draft) in zip(walks, chains, strict=True):
            rows = scores.logits[[node + 1 for node in walk[len(walk) - len(draft.tokens) :]]]
            results.append(overlaps(draft, rows) if draft.tokens else [])
        return results

    def chunks(self, upto: int) -> list[Scores]:
        """Return its scores of the text itself."""
        starts = range(0, upto, CHUNK)
        return [self.scores(at, Draft.chain(self.text.tokens[at : min(at + CHUNK, upto)])) for at in starts]

    def close(self) -> None:
        self.target.close(self.request)


def merge_paths(paths: Sequence[Sequence[int]]) -> tuple[Draft, list[list[int]]]:
    """Return one tree with all paths, and the nodes along each, from the last committed token (-1) on."""
    tree = merged(map(Draft.chain, paths), sum(map(len, paths)))
    nodes = {pair: i for i, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    walks = [accumulate(path, lambda node, token: nodes[node, token], initial=-1) for path in paths]
    return tree, list(map(list, walks))


class DraftTable:
    """The drafts of one drafter as they are recorded: in flat columns, and where each position's are in them.

    `accept` and `shared` have `graded` numbers, one for each token of a sampled text.
    """

    def __init__(self, text: Text, length: int, *, graded: int = 0) -> None:
        n = text.committed
        self.start, self.count = np.zeros((n, length), np.int32), np.zeros((n, length), np.int32)
        self.hint, self.accept, self.shared = np.zeros(n), np.zeros(graded), np.zeros(graded)
        self.tokens, self.signals = list[int](), list[Signals]()
        self.overlaps, self.chances = list[float](), list[float]()
        self.given: Given | None = None

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

    def place(self, at: int, first: int, n: int) -> None:
        """Let the drafts of all lengths at a position begin at `first`, with at most `n` tokens."""
        self.start[at] = first
        self.count[at] = np.minimum(np.arange(1, self.count.shape[1] + 1), n)

    def build(self) -> RecordedDrafts:
        rows = [(s.top1, s.top2, s.entropy, s.chosen) for s in self.signals]
        return RecordedDrafts(
            tokens=np.array(self.tokens, np.int32),
            start=self.start,
            count=self.count,
            hint=self.hint,
            signals=np.array(rows, np.float64).reshape(-1, len(FIELDS)),
            overlap=np.array(self.overlaps, np.float64),
            accept=self.accept,
            shared=self.shared,
            chance=np.array(self.chances, np.float64),
            given=self.given,
        )


# -- lookups --------------------------------------------------------------------------------------------


def record_lookup(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, target: Target | None = None
) -> RecordedDrafts:
    """Record a lookup's drafts of at most 1, 2, ... `length` tokens; with a `target`, their raw overlaps too.

    Every length is requested, since a shorter draft need not be the beginning of a longer one; equal drafts
    of a position are stored once.
    """
    table, request = DraftTable(text, length), text.request(next(ids), 0)
    reader = TextReader(target, text, ids) if target is not None else None
    drafter.observe(request, request.tokens)
    for at in range(text.committed):
        view = replace(request, tokens=request.tokens + text.tokens[:at])
        table.hint[at] = drafter.hint(view)
        row = [draft_one(drafter, Job(view, n, READ_ALL)) for n in range(1, length + 1)]
        table.given = table.given or find_given(drafter, view, length)
        drafter.observe(view, text.tokens[at : at + 1])
        longest = _without_prefixes(row)
        overlaps = reader.path_overlaps(at, longest) if reader else [()] * len(longest)
        places = {
            draft: table.add(draft, along, accepted_chances(at, draft, text))
            for draft, along in zip(longest, overlaps, strict=True)
        }
        for k, draft in enumerate(row):
            table.count[at, k] = len(draft.tokens)
            table.start[at, k] = next(place for whole, place in places.items() if _begins(whole, draft))
    drafter.close(request)
    if reader:
        reader.close()
    return table.build()


def draft_one(drafter: Drafter, job: Job) -> Draft:
    (draft,) = drafter.draft([job])
    return check_chain(draft)


def check_chain(draft: Draft) -> Draft:
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


def accepted_chances(at: int, draft: Draft, text: Text) -> list[float]:
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
    whole = draft_one(drafter, Job(view, length, READ_ALL, deterministic=True))
    if not whole.tokens:
        return None
    given: dict[str, list[str] | None] = {}
    for name, rule in READING.items():
        draft = draft_one(drafter, Job(view, length, (rule,), deterministic=True))
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


def record_model(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, target: Target | None = None
) -> RecordedDrafts:
    """Record a model's drafts of up to `length` tokens; with a `target`, their raw overlaps too.

    One draft serves all positions up to its first error.
    """
    stems = sorted(_stems(drafter, text, length, ids, rows=target is not None), key=itemgetter(0))
    reader = TextReader(target, text, ids) if target is not None else None
    table = DraftTable(text, length)
    for start, mismatch, draft in stems:
        overlaps = reader.scores(start, draft).overlaps() if reader and draft.tokens else ()
        first = table.add(draft, overlaps)
        for at in range(start, mismatch + 1):
            table.place(at, first + at - start, len(draft.tokens) - (at - start))
    if reader:
        reader.close()
    request = text.request(next(ids), 0)
    drafter.observe(request, request.tokens)
    table.given = find_given(drafter, request, 1)
    table.hint[:] = drafter.hint(request)
    drafter.close(request)
    return table.build()


def _stems(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, rows: bool
) -> list[tuple[int, int, Draft]]:
    """Make drafts that cover every position, as few as the text allows: (start, first mismatch, draft).

    All positions from the start to the mismatch share a draft.
    """
    whole = text.request(next(ids), text.committed)
    waiting, stems = _spans(_matches(drafter, text, whole)), list[tuple[int, int, Draft]]()
    while waiting:
        waiting.sort(key=lambda span: span[1] - span[0])
        spans, waiting = waiting[:BATCH], waiting[BATCH:]
        drafts = _draft_spans(drafter, text, whole, spans, length, ids, rows=rows)
        for (start, end), draft in zip(spans, drafts, strict=True):
            mismatch = min(end, start + text.matching(start, draft.tokens))
            stems.append((start, mismatch, draft))
            if mismatch < end:  # a near tie may differ between token-by-token and batched passes
                waiting.append((mismatch + 1, end))
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
        check_chain(draft)
    return drafts


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


def record_grades(drafter: Drafter, text: Text, length: int, ids: Iterator[int]) -> RecordedDrafts:
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
    table = DraftTable(text, length, graded=len(grades))
    table.hint[:] = drafter.hint(request)
    table.accept[:] = [grade.accept for grade in grades]
    table.shared[:] = [grade.overlap for grade in grades]
    drafter.close(request)
    return table.build()

"""Records a lookup's drafts at every position of a text; helpers for all drafters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isclose

import numpy as np

from ...core.arms import NEVER, Stop
from ...core.drafts import Draft, Job, Signals
from ...core.request import Request
from ...core.roles import Drafter, Target
from ...drafters.together import merged
from ...errors import UserError
from .files import FIELDS, Answers, Floats, Ints
from .reading import Reader, Text, certain

ASK: Mapping[str, Stop] = {
    "": NEVER,
    "top1": Stop("max-confidence", -1.0),
    "top2": Stop("logit-margin", -2.0),
    "entropy": Stop("svip", inf),
    "chosen": Stop("confidence", -1.0),
}
"""For each signal a rule that reads it (`top2` includes `top1`) and never stops a draft."""

CLOSE = tuple(ASK[name] for name in FIELDS)  # rules that together read all signals

Given = dict[str, list[str] | None]
"""For each signal that a rule may read, the signals that a draft then has; None for none at all."""


@dataclass(slots=True)
class Tokens:
    """Drafts one after the other in flat columns; equal drafts are stored once."""

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

    def answers(self, start: Ints, count: Ints, hint: Floats) -> Answers:
        """These drafts, with their start at each position."""
        rows = [(s.top1, s.top2, s.entropy, s.chosen) for s in self.signals]
        return Answers(
            tokens=np.array(self.tokens, np.int32),
            start=start,
            count=count,
            hint=hint,
            signals=np.array(rows, np.float64).reshape(-1, len(FIELDS)),
            overlap=np.array(self.overlaps, np.float64),
            chance=np.array(self.chances, np.float64),
        )


Known = dict[tuple[int, tuple[int, ...]], list[float]]
"""Computes raw probabilities along a path that leaves the text at a position."""


def answers(
    drafter: Drafter, text: Text, length: int, ids: Iterator[int], *, target: Target | None = None
) -> tuple[Answers, Given | None]:
    """A lookup's drafts of at most 1, 2, ... `length` tokens; with a `target`, their raw overlaps too."""
    drafts, hints, carried = _ask(drafter, text, length, next(ids))
    chosen: list[list[Draft]] = [list(dict.fromkeys(row)) for row in map(_longest, drafts)]
    on_text = certain(target, text, ids) if target is not None else []
    off_text = _off_text(target, text, chosen, ids) if target is not None else {}
    flat, n = Tokens(), text.committed
    start, count = np.zeros((n, length), np.int32), np.zeros((n, length), np.int32)
    for at, row in enumerate(drafts):
        places = {}
        for draft in chosen[at]:
            overlaps = _overlaps(at, draft, text, on_text, off_text) if target is not None else ()
            places[draft] = flat.add(draft, overlaps, _chances(at, draft, text))
        for k, draft in enumerate(row):
            count[at, k] = len(draft.tokens)
            start[at, k] = next(places[whole] for whole in chosen[at] if _begins(whole, draft))
    return flat.answers(start, count, np.array(hints, np.float64)), carried


def _ask(
    drafter: Drafter, text: Text, length: int, key: int
) -> tuple[list[list[Draft]], list[float], Given | None]:
    """Drafts by position and requested length, hints, and the signals that drafts have.

    Every length is requested: a shorter draft need not be the beginning of a longer one.
    """
    request, carried = text.request(key, 0), None
    drafter.observe(request, request.tokens)
    drafts, hints = [], []
    for at in range(text.committed):
        view = replace(request, tokens=request.tokens + text.tokens[:at])
        hints.append(drafter.hint(view))
        drafts.append([_one(drafter, Job(view, n, CLOSE)) for n in range(1, length + 1)])
        carried = carried or given(drafter, view, length)
        drafter.observe(view, text.tokens[at : at + 1])
    drafter.close(request)
    return drafts, hints, carried


def _one(drafter: Drafter, job: Job) -> Draft:
    (draft,) = drafter.draft([job])
    if draft.dist is not None or not draft.is_chain:
        raise UserError("it draws its tokens or drafts trees, where a trace needs one chain")
    return draft


def _longest(row: Sequence[Draft]) -> list[Draft]:
    """The drafts of one position, without those that are prefixes of others."""
    kept: list[Draft] = []
    for draft in sorted(row, key=lambda d: -len(d.tokens)):
        if not any(_begins(whole, draft) for whole in kept):
            kept.append(draft)
    return kept


def _begins(whole: Draft, draft: Draft) -> bool:
    n = len(draft.tokens)
    return whole.tokens[:n] == draft.tokens and whole.signals[:n] == draft.signals


def _leaves(at: int, tokens: Sequence[int], text: Text) -> tuple[int, tuple[int, ...]]:
    """Where a draft made at `at` leaves the text, and its tokens from there on."""
    k = 0
    while k < len(tokens) and at + k < text.committed and tokens[k] == text.tokens[at + k]:
        k += 1
    return at + k, tuple(tokens[k:])


def _off_text(target: Target, text: Text, drafts: Sequence[Sequence[Draft]], ids: Iterator[int]) -> Known:
    """The target's raw probabilities along all paths that leave the text, one tree per position."""
    paths: dict[int, dict[tuple[int, ...], None]] = {}
    for at, row in enumerate(drafts):
        for draft in row:
            place, path = _leaves(at, draft.tokens, text)
            if path:
                paths.setdefault(place, {})[path] = None
    reader, known = Reader(target, text, ids), Known()
    for place in sorted(paths):
        tree = merged([Draft.chain(path) for path in paths[place]], sum(map(len, paths[place])))
        found = reader.scores(place, tree).overlaps()
        nodes = {pair: i for i, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        for path in paths[place]:
            node, known[place, path] = -1, []
            for token in path:
                node = nodes[node, token]
                known[place, path].append(found[node])
    reader.close()
    return known


def _overlaps(at: int, draft: Draft, text: Text, on_text: Sequence[float], off_text: Known) -> list[float]:
    place, path = _leaves(at, draft.tokens, text)
    return [*on_text[at:place], *(off_text[place, path] if path else ())]


def _chances(at: int, draft: Draft, text: Text) -> list[float]:
    """The target's probability of each token up to the first off the text; 0 beyond (never read)."""
    if text.sampling.greedy:
        return []
    place, _ = _leaves(at, draft.tokens, text)
    known = min(place - at + 1, len(draft.tokens), text.committed - at)
    chances = [text.chance(at + k, draft.tokens[k]) for k in range(known)]
    return chances + [0.0] * (len(draft.tokens) - known)


def given(drafter: Drafter, view: Request, length: int) -> Given | None:
    """Which signals the drafter's drafts have, by the signal that is read; None if it drafts nothing.

    Raises:
        UserError: a signal changes with what else is read.
    """
    whole = _one(drafter, Job(view, length, CLOSE))
    if not whole.tokens:
        return None
    found: Given = {}
    for name, rule in ASK.items():
        draft = _one(drafter, Job(view, length, (rule,)))
        if draft.tokens != whole.tokens:
            raise UserError("its drafts change with the signals that are read")
        found[name] = _carried(draft, whole) if draft.signals else None
    return found


def _carried(draft: Draft, whole: Draft) -> list[str]:
    carried = []
    for name in FIELDS:
        pairs = [
            (getattr(a, name), getattr(b, name)) for a, b in zip(draft.signals, whole.signals, strict=True)
        ]
        if all(isclose(a, b, rel_tol=1e-3) for a, b in pairs):  # a model reads in passes of other widths
            carried.append(name)
        elif any(a for a, _ in pairs):
            raise UserError(f"its signal {name} changes with what else is read")
    return carried

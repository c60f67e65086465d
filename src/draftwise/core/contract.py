"""What a drafter returns: checks of its contract, and drafts that keep to what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Integral

from ..errors import one_line
from .constraint import Constraint
from .drafts import EMPTY, Draft, Job, Signals
from .outcomes import Grade
from .roles import Continuer, Drafter, GradeJob


def wrong_draft(draft: Draft, most: int, vocab_size: int) -> str:
    """Return what is wrong with a draft that may have at most `most` tokens; "" if nothing."""
    try:
        return _breach(draft, most, vocab_size) if draft.tokens else ""
    except Exception as error:  # fields of unexpected types
        return f"a malformed draft ({one_line(error)})"


def wrong_grades(made: Sequence[Sequence[Grade]], jobs: Sequence[GradeJob]) -> str:
    """Return what is wrong with a drafter's grades; raises if they have another type."""
    wanted = [len(job.request.tokens) - job.start for job in jobs]
    if [len(grades) for grades in made] != wanted:
        return f"grades for {[len(grades) for grades in made]} tokens where {wanted} were asked for"
    if not all(0.0 <= g.accept <= 1.000001 for grades in made for g in grades):  # false for NaN as well
        return "a grade outside [0, 1]"
    return ""


def finite(hint: float) -> float:
    """Return the hint as a finite float.

    Raises:
        ValueError: it is infinite or NaN.
    """
    if not isfinite(hint):
        raise ValueError(f"a hint of {hint}")
    return hint


def wrong_tokens(tokens: Sequence[int], most: int, vocab_size: int) -> str:
    """Return what is wrong with one or more tokens of a draft that may have at most `most`; "" if nothing."""
    if len(tokens) > most:
        return f"{len(tokens)} tokens where {most} were asked for"
    if not _whole(tokens):
        return "a token that is no whole number"
    if not (min(tokens) >= 0 and max(tokens) < vocab_size):
        return f"a token outside the vocabulary of {vocab_size}"
    return ""


def of_integers(draft: Draft) -> Draft:
    """A sound draft with its tokens and parents as tuples of Python's own integers, whatever they were."""
    if not draft.tokens:
        return EMPTY
    both = (draft.tokens, draft.parents)
    if all(type(ids) is tuple and set(map(type, ids)) <= {int} for ids in both):
        return draft
    tokens, parents = (tuple(map(int, ids)) for ids in both)
    return replace(draft, tokens=tokens, parents=parents)


def _breach(draft: Draft, most: int, vocab_size: int) -> str:
    draft.tokens[0]  # raises where they are no sequence, such as a set
    if wrong := wrong_tokens(draft.tokens, most, vocab_size):
        return wrong
    n = len(draft.tokens)
    ordered = all(-1 <= parent < node for node, parent in enumerate(draft.parents))
    if len(draft.parents) != n or not ordered or not _whole(draft.parents):
        return "parents that are not earlier nodes"
    if not all(0.0 <= p <= 1.000001 for p in draft.probs):  # false for NaN as well
        return "a probability outside [0, 1]"
    return "" if draft.dist is None else _unlawful(draft, vocab_size)


def _whole(ids: Sequence[int]) -> bool:
    return set(map(type, ids)) == {int} or all(isinstance(one, Integral) for one in ids)


def _unlawful(draft: Draft, vocab_size: int) -> str:
    """Return what is wrong with a sampled draft; "" if nothing."""
    n = len(draft.dist)
    if not 0 < n <= len(draft.tokens):
        return f"{n} distributions for {len(draft.tokens)} tokens"
    if len(draft.probs) != n:
        return f"{len(draft.probs)} probabilities for {n} sampled tokens"
    if tuple(draft.parents[:n]) != tuple(range(-1, n - 1)):
        return "sampled tokens that are no chain: siblings must be picked"
    wrong = next((len(q) for q in draft.dist if len(q) != vocab_size), None)
    return f"a distribution over {wrong} tokens, not {vocab_size}" if wrong is not None else ""


CERTAIN = 1.0


def drafted(drafter: Drafter, jobs: Sequence[Job], wrong: Callable[[Job, Draft], str]) -> list[Draft]:
    """Return a drafter's drafts, which keep to what the processors of their requests allow.

    Tokens that must come next are drafted before those of a drafter that can draft after them; another one is
    not asked then. A draft that breaks its contract, as `wrong` tells, stays as it is.
    """
    if all(job.constraint is None for job in jobs):
        return list(drafter.draft(jobs))  # a mapping would not be read by place
    guided = bool(getattr(drafter, "guided", False))
    heads = [
        [] if guided or job.constraint is None else job.constraint.forced((), job.length) for job in jobs
    ]
    asked = [k for k, head in enumerate(heads) if not head]
    late = [k for k, head in enumerate(heads) if 0 < len(head) < jobs[k].length]
    found = list(drafter.draft([jobs[k] for k in asked])) if asked else []
    if len(found) != len(asked):
        return found
    if late and isinstance(drafter, Continuer):
        rest = [replace(jobs[k], length=jobs[k].length - len(heads[k])) for k in late]
        found += drafter.draft_after(rest, [heads[k] for k in late])
        asked += late
    made = dict(zip(asked, found, strict=True))
    return [_kept(job, heads[k], made.get(k, EMPTY), wrong) for k, job in enumerate(jobs)]


def _kept(job: Job, head: Sequence[int], draft: Draft, wrong: Callable[[Job, Draft], str]) -> Draft:
    if job.constraint is None or wrong(job, draft):
        return draft
    if head and not (draft.is_chain and draft.dist is None):
        draft = EMPTY
    return longest_allowed(framed(head, draft, ()), job.constraint, job.length)


def longest_allowed(draft: Draft, constraint: Constraint, most: int) -> Draft:
    """Return a draft without what is not allowed, and with what must follow it, up to `most` tokens.

    Only picked tokens may be left out because of what they are: a drawn draft stays as it is.
    """
    if draft.dist is not None:
        return draft
    if not draft.is_chain:
        return _pruned(draft, constraint)
    tokens = draft.tokens
    wrong = (n for n, token in enumerate(tokens) if not constraint.allows(tokens[:n], token))
    n = next(wrong, len(tokens))
    cut = draft if n == len(tokens) else first(draft, n)
    return framed((), cut, constraint.forced(tokens[:n], most - n))


def framed(before: Sequence[int], draft: Draft, after: Sequence[int]) -> Draft:
    """Return a picked chain with certain tokens before and after it."""
    if not before and not after:
        return draft
    n, sure = len(draft.tokens), Signals(CERTAIN, 0.0, 0.0, CERTAIN, top=(CERTAIN,))
    probs: tuple[float, ...] = ()
    signals: tuple[Signals, ...] = ()
    if len(draft.probs) == n:
        probs = (CERTAIN,) * len(before) + draft.probs + (CERTAIN,) * len(after)
    if len(draft.signals) == n:
        signals = (sure,) * len(before) + draft.signals + (sure,) * len(after)
    prefix_length = len(before) + draft.prefix_length if draft.prefix_length else 0
    tokens = (*before, *draft.tokens, *after)
    return Draft.chain(tokens, probs=probs, signals=signals, prefix_length=prefix_length, match=draft.match)


def first(draft: Draft, n: int) -> Draft:
    dist = None if draft.dist is None else draft.dist[:n]
    rows = None if draft.rows is None else draft.rows[:n]
    return replace(
        draft,
        tokens=draft.tokens[:n],
        parents=draft.parents[:n],
        probs=draft.probs[:n],
        signals=draft.signals[:n],
        dist=dist,
        rows=rows,
        prefix_length=min(draft.prefix_length, n),
        match=draft.match if n > draft.prefix_length else 0,
    )


def _pruned(draft: Draft, constraint: Constraint) -> Draft:
    """Return a tree without the nodes that are not allowed, and without those below them."""
    place: dict[int, int] = {-1: -1}
    paths: dict[int, list[int]] = {-1: []}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent in place and constraint.allows(paths[parent], token):
            place[node], paths[node] = len(place) - 1, [*paths[parent], token]
    kept = [node for node in place if node >= 0]
    if len(kept) == len(draft.tokens):
        return draft
    return Draft(
        tuple(draft.tokens[node] for node in kept), tuple(place[draft.parents[node]] for node in kept)
    )

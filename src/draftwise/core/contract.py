"""Checks of what a drafter returns: each check returns the violation in a few words, "" if there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from numbers import Integral

from ..errors import one_line
from .drafts import Draft
from .outcomes import Grade
from .roles import GradeJob


def wrong_draft(draft: Draft, most: int, vocab_size: int) -> str:
    """What is wrong with a draft that may have at most `most` tokens; "" if nothing."""
    try:
        return _breach(draft, most, vocab_size) if draft.tokens else ""
    except Exception as error:  # fields of unexpected types
        return f"a malformed draft ({one_line(error)})"


def wrong_grades(made: Sequence[Sequence[Grade]], jobs: Sequence[GradeJob]) -> str:
    """What is wrong with a drafter's grades; raises if they have another type."""
    wanted = [len(job.request.tokens) - job.start for job in jobs]
    if [len(grades) for grades in made] != wanted:
        return f"grades for {[len(grades) for grades in made]} tokens where {wanted} were asked for"
    if not all(0.0 <= g.accept <= 1.000001 for grades in made for g in grades):  # false for NaN as well
        return "a grade outside [0, 1]"
    return ""


def finite(hint: float) -> float:
    """The hint as a finite float.

    Raises:
        ValueError: it is infinite or NaN.
    """
    if not isfinite(hint):
        raise ValueError(f"a hint of {hint}")
    return hint


def wrong_tokens(tokens: Sequence[int], most: int, vocab_size: int) -> str:
    """What is wrong with one or more tokens of a draft that may have at most `most`; "" if nothing."""
    if len(tokens) > most:
        return f"{len(tokens)} tokens where {most} were asked for"
    if not _whole(tokens):
        return "a token that is no whole number"
    if not (min(tokens) >= 0 and max(tokens) < vocab_size):
        return f"a token outside the vocabulary of {vocab_size}"
    return ""


def of_integers(draft: Draft) -> Draft:
    """A sound draft with its tokens and parents as tuples of Python's own integers, whatever they were."""
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
    """What is wrong with a sampled draft; "" if nothing."""
    n = len(draft.tokens)
    if len(draft.probs) != n:
        return f"{len(draft.probs)} probabilities for {n} sampled tokens"
    if not draft.is_chain:
        return "sampled tokens that are no chain: siblings must be picked"
    if len(draft.dist) != n:
        return f"{len(draft.dist)} distributions for {n} sampled tokens"
    wrong = next((len(q) for q in draft.dist if len(q) != vocab_size), None)
    return f"a distribution over {wrong} tokens, not {vocab_size}" if wrong is not None else ""

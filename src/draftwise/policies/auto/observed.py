"""What the recorder of `auto` hands to the policy, as numbers, in `Feedback.observed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class DraftCall:
    """One call of a drafter for some requests of a batch.

    `longest` is the tokens of its longest draft, `pending` the tokens of the texts that it had to read first,
    `drafts` the tokens of each draft and the length that was asked for. Seconds are wall-clock time.
    """

    drafter: int
    longest: int
    pending: int
    seconds: float
    batch: int
    drafts: Sequence[tuple[int, int]]


@dataclass(slots=True)
class GradingPass:
    """One pass in which a drafter graded committed tokens: the tokens that it read, and its seconds.

    `chances` has, for each graded token with signals, the probability that the drafter gave it and the
    probability that it is accepted.
    """

    drafter: int
    tokens: int
    seconds: float
    chances: Sequence[tuple[float, float]]


@dataclass(slots=True)
class Observed:
    """What was seen in one round of one request, beside its outcome and windows.

    `written` is the tokens of the answer so far, `read` how many tokens of the text each model has read.
    `calls` and `passes` concern the whole batch and come with its first request. `looks_up`, in the first
    round of all, says which drafters are known by their drafts alone (lookups).
    """

    written: int
    read: Mapping[int, int]
    calls: Sequence[DraftCall] = ()
    passes: Sequence[GradingPass] = ()
    looks_up: tuple[bool, ...] = ()

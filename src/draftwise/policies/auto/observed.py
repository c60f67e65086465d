"""What the recorder of `auto` hands to the policy, as numbers, in `Feedback.observed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...core.outcomes import Window


@dataclass(slots=True)
class DraftCall:
    """One call of a drafter for some requests of a batch.

    `longest` is the tokens of its longest draft, `pending` the tokens of the texts that it had to read first,
    `drafts` the tokens of each draft and the length that was asked for. Seconds are wall-clock time;
    `compiled` is whether they were spent in compiled passes.
    """

    drafter: int
    batch: int
    longest: int = 0
    pending: int = 0
    seconds: float = 0.0
    compiled: bool = False
    drafts: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class GradingPass:
    """One pass in which a drafter graded committed tokens: the tokens that it read, and its seconds, in a
    round of so many requests (`batch`).

    `chances` has, for each graded token with signals, the probability that the drafter gave it and the
    probability that it is accepted; `windows` has the results by the request's place in the batch.
    """

    drafter: int
    tokens: int
    seconds: float
    chances: Sequence[tuple[float, float]]
    windows: Mapping[int, list[Window]]
    batch: int = 1


@dataclass(slots=True)
class Observed:
    """What was seen in one round of one request, beside its outcome and windows.

    `written` is the tokens of the answer so far, `read` how many tokens of the text each model has read.
    `calls` and `grading` concern the whole batch and come with its first request alone. `looks_up`, in the
    first round of all, says which drafters are known by their drafts alone (lookups).
    """

    written: int
    read: Mapping[int, int]
    calls: Sequence[DraftCall] | None = None
    grading: GradingPass | None = None
    looks_up: tuple[bool, ...] = ()

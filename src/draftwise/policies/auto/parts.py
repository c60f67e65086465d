"""The parts of `auto` that decide, as small functions: each can be replaced when an `AutoPolicy` is built.

    AutoPolicy(arms, drafters, looks_up, pricing=flat, guard=Guard())

Parts with a state are classes in modules of their own: `Skill` (acceptance), `Guard`, and in the recorder
`Budget`, `LookupGuesses` and `ModelGrading`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from ...core.arms import Stop
from .skill import Calibration, Skill
from .worth import Price, Worth

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
MATCHES = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)  # the context of a match is the first that is not smaller
CONTEXTS = len(MATCHES) + 1
MISSED = 0.6  # of the continuations of a match of one token
SUREST = 0.9  # the highest threshold of the stop rule
GAIN = attrgetter("gain")


class Guarding(Protocol):
    """Compares the seconds spent with those of plain decoding, and can turn speculation off."""

    def stands(self, load: float = 1.0, batch: int = 1) -> bool:
        """Whether a request may draft in this round, at this load factor."""
        ...

    def add(self, seconds: float, plain: float, batch: int = 1) -> None:
        """Learn one round with drafts in its pass: its seconds, and those of plain passes for its tokens."""
        ...


class Pricing(Protocol):
    """What a draft costs."""

    def __call__(
        self, start: float, each: float, reading: float, extra: Sequence[float], plain: Callable[[int], float]
    ) -> Price:
        """The price of a draft, from measured seconds.

        Args:
            start: of a draft call, of any length.
            each: per drafted token.
            reading: of the text that the drafter has not read, spread over the rounds that are left.
            extra: that 0, 1, ... drafted tokens add to the target pass.
            plain: seconds of a target pass by its tokens.
        """
        ...


Pick: TypeAlias = Callable[[Sequence[Worth]], Worth | None]
"""Chooses the draft to make among those of all drafters, or None: no draft."""
Stopping: TypeAlias = Callable[[Calibration, float], Stop]
"""The stop rule of a model's draft: its calibration, and the least chance of acceptance that pays."""
Match: TypeAlias = Callable[[float], int]
"""The context of a lookup's hint, from 0 (no match) to `CONTEXTS` - 1."""
NewSkill: TypeAlias = Callable[[bool], Skill]
"""Makes the acceptance model of one drafter, by whether it is a lookup."""


def new_skill(looks_up: bool, **options: Any) -> Skill:
    """Counts that fade, and counts of each request that fade faster; options as those of `Skill`.

    It starts from what matches and models are worth in general (`prior`).
    """
    return Skill(CONTEXTS, LENGTHS[-1], prior=prior(looks_up), **options)


def prior(looks_up: bool) -> list[list[float]]:
    """The chances of a drafter of which nothing is known, by context and place in the draft.

    A lookup's k-th token is as likely to be right as the first one of a match that is k tokens longer; after
    m + k tokens it is 1 - `MISSED` / (m + k) ** 0.75 (fitted to half of the prompts of three traces, see
    docs/explanation/auto.md). A model's tokens are right half of the time.
    """
    if not looks_up:
        return [[0.5] * LENGTHS[-1] for _ in range(CONTEXTS)]
    shortest = (1, 1, *(int(match) + 1 for match in MATCHES[1:]))
    return [[1.0 - MISSED / (match + k) ** 0.75 for k in range(LENGTHS[-1])] for match in shortest]


def measured(
    start: float, each: float, reading: float, extra: Sequence[float], plain: Callable[[int], float]
) -> Price:
    """The measured seconds, reading included."""
    return start + reading, each, extra


def best_gain(worths: Sequence[Worth]) -> Worth | None:
    """The draft of the highest gain, if it is above 0."""
    best = max(worths, key=GAIN, default=None)
    return best if best is not None and best.gain > 0.0 else None


def stop_by_gain(calibration: Calibration, least: float) -> Stop:
    """Draft on while the chance that all tokens so far and one more are accepted is above `least`."""
    return Stop("gain", min(least, SUREST), calibration)


def match_length(hint: float) -> int:
    """The class of a match by its length; 0 for none."""
    return bisect_left(MATCHES, hint)

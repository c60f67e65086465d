"""The parts of `auto` that decide, as small functions: each can be replaced when an `AutoPolicy` is built.

    AutoPolicy(arms, drafters, looks_up, pricing=flat, guard=Guard())

Parts with a state are classes in modules of their own: `Skill` (acceptance), `Guard`, and in the recorder
`Budget`, `LookupGuesses` and `ModelGrading`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeAlias

from ...core.arms import Stop
from .skill import Calibration, Skill
from .worth import Price, Worth

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
MATCHES = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)  # the context of a match is the first that is not smaller
CONTEXTS = len(MATCHES) + 1
SUREST = 0.9  # the highest threshold of the stop rule
GAIN = attrgetter("gain")


class Guarding(Protocol):
    """Compares the seconds spent with those of plain decoding, and can turn speculation off."""

    def stands(self, load: float = 1.0, batch: int = 1, gain: float = 0.0) -> bool:
        """Whether a request may make a draft of so much `gain`, in tokens, at this load factor."""
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
NewSkill: TypeAlias = Callable[[], Skill]
"""Makes the acceptance model of one drafter."""


new_skill = partial(Skill, CONTEXTS, LENGTHS[-1])
"""Counts that fade, and counts of each request that fade faster; options as those of `Skill`."""


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

"""Where one request stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .parts import Match


@dataclass(slots=True)
class Place:
    """Where one request stands: each drafter's context at the last choice, the tokens of the text that each
    has read, and the tokens of the answer."""

    contexts: list[int]
    read: list[int]
    written: int = 0

    @property
    def matched(self) -> bool:
        """Whether any lookup had a match there."""
        return max(self.contexts, default=0) > 0

    def look(
        self, hints: Mapping[str, float], drafters: Sequence[str], looks_up: Sequence[bool], match: Match
    ) -> None:
        """Take each lookup's context from its hint, and that of all models from the best of them."""
        own = [match(hints.get(name, 0.0)) if up else 0 for name, up in zip(drafters, looks_up, strict=True)]
        best = max(own, default=0)
        self.contexts = [mine if up else best for mine, up in zip(own, looks_up, strict=True)]


USED = 1 / 8  # of the tokens that are left begin a round in which a model drafts that has read the text


def rounds_left(answer: float, position: int) -> float:
    """The rounds over which reading is paid off, from the length of earlier answers.

    Not all that are left: in most of them a lookup drafts, or no drafter does.
    """
    return max(1.0, USED * max(answer - position, 0.5 * position, 8.0))

"""Where one request stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .parts import Match


@dataclass(slots=True)
class Place:
    """Where one request stands.

    Attributes:
        contexts: each drafter's context at the last choice.
        read: the tokens of the text that each drafter has read.
        written: the tokens of the answer.
        price: the tokens that a second was worth at the last choice.
        token: the last token of the text there.
    """

    contexts: list[int]
    read: list[int]
    written: int = 0
    price: float = 0.0
    token: int = -1

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


SHARE = (0.05, 0.1)  # weight of the last round in a model's share, and the least that it counts


def rounds_left(answer: float, position: int, share: float = 1.0) -> float:
    """The rounds over which reading is paid off, from the length of earlier answers.

    In many of those that are left a lookup drafts, or no drafter does: a model drafts in a `share` of them.
    """
    left = max(answer - position, 0.5 * position, 8.0)
    return max(1.0, max(share, SHARE[1]) * left / 2.0)

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
        matched: whether any lookup had a match there.
        price: the tokens that a second was worth at the last choice.
        token: the last token of the text there.
    """

    contexts: list[int]
    read: list[int]
    written: int = 0
    matched: bool = False
    price: float = 0.0
    token: int = -1

    def look(
        self, hints: Mapping[str, float], drafters: Sequence[str], looks_up: Sequence[bool], match: Match
    ) -> None:
        """Take each lookup's context from its hint, and that of all models from the best of them."""
        own = [match(hints.get(name, 0.0)) if up else -1 for name, up in zip(drafters, looks_up, strict=True)]
        best = max(own, default=0)
        self.matched = best > 0
        self.contexts = [best if mine < 0 else mine for mine in own] if best > 0 else [0] * len(own)


SHARE = (0.05, 0.1)  # weight of the last round in a model's share, and the least that it counts


def rounds_left(answer: float, position: int, share: float = 1.0) -> float:
    """The rounds over which reading is paid off, from the length of earlier answers.

    In many of those that are left a lookup drafts, or no drafter does: a model drafts in a `share` of them.
    """
    left = max(answer - position, 0.5 * position, 8.0)
    return max(1.0, max(share, SHARE[1]) * left / 2.0)

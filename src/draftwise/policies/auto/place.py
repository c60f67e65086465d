"""Where one request stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from .parts import Match


@dataclass(slots=True)
class Place:
    """Where one request stands.

    Attributes:
        contexts: each drafter's context at the last choice.
        read: the tokens of the text that each model has read, of those that have read any.
        written: the tokens of the answer.
        matched: whether any lookup had a match there.
        price: the tokens that a second was worth at the last choice.
        token: the last token of the text there.
    """

    contexts: list[int]
    read: Mapping[int, int] = field(default_factory=dict)
    written: int = 0
    matched: bool = False
    price: float = 0.0
    token: int = -1

    def look(
        self, hints: Mapping[str, float], drafters: Sequence[str], looks_up: Sequence[bool], match: Match
    ) -> None:
        """Take each lookup's context from its hint, and that of all models from the best of them."""
        own, best = [0] * len(drafters), 0
        for i, name in enumerate(drafters):
            if looks_up[i] and (hint := hints.get(name)):
                own[i] = match(hint)
                best = max(best, own[i])
        self.matched = best > 0
        if best > 0:
            own = [own[i] if up else best for i, up in enumerate(looks_up)]
        self.contexts = own


UNKNOWN = 64.0  # tokens of an answer, before the first has ended
SHARE = (0.05, 0.1)  # weight of the last round in a model's share, and the least that it counts


def rounds_left(answer: float, position: int, tokens: float, share: float = 1.0, room: float = inf) -> float:
    """The rounds over which reading is paid off, from the length of earlier answers and the `room` for more.

    A round writes so many `tokens` where the model drafts. In many of those that are left a lookup drafts, or
    no drafter does: the model drafts in a `share` of them.
    """
    left = min(max((answer or UNKNOWN) - position, 0.5 * position, 8.0), room)
    return max(1.0, max(share, SHARE[1]) * left / tokens)

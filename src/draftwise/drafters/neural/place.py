"""What a drafting model's row holds of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Place:
    """The contents of a row: the first `base` visible tokens of the request, then the drafted tokens `fed`.

    `skip` tokens of the request after its first ones are outside the window.
    """

    base: int = 0
    fed: list[int] = field(default_factory=list)
    skip: int = 0

    def cut(self, length: int) -> None:
        """Drop the request's tokens from `length` on, and the drafted ones."""
        self.now(max(0, min(self.base, length - self.skip)))

    def now(self, base: int) -> None:
        """Drop the drafted tokens."""
        self.base, self.fed = base, []

    def matched(self, tokens: Sequence[int]) -> int:
        """How many of the row's tokens are still the request's text."""
        same = self.base
        for token in self.fed:
            if same >= len(tokens) or tokens[same] != token:
                break
            same += 1
        return same

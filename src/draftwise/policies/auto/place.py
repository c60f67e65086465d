"""Where one request stands."""

from __future__ import annotations

from dataclasses import dataclass


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

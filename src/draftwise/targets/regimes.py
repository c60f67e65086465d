"""Texts of a model that reads a prompt otherwise than what comes after it, as its own decoding reads them.

That decoding reads the prompt in one pass, so all of it has the rotary frequencies of the prompt's length,
and then one token at a time. What it read before a border keeps its frequencies, or is read anew (`Rope`).
And a cache that forgets hides from later tokens what the prompt's tokens see (`View.late`).
"""

from __future__ import annotations

from ..core.request import Request
from ..models.positions import ENDLESS
from ..models.runner import Rows


class Regimes:
    """How each open text was read: with which frequencies, and what of it as a prompt.

    A token's frequencies are those of a text of some length: `Rope.regime` tells lengths apart.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows, self.rope, self.prompts = rows, rows.rope, rows.prompts
        self.under: dict[int, int] = {}

    def reach(self, request: Request) -> int:
        """The longest draft that does not cross a border."""
        n = len(request.tokens)
        return self.rope.last(n) - n

    def base(self, request: Request) -> int:
        """The length of text that the first tokens are read as."""
        return len(request.tokens) if self.rope.anew else request.prompt_length

    def renew(self, row: int, request: Request) -> None:
        """Forget what a row holds where it was read otherwise than it would be now."""
        key, held, regime = request.id, self.rows.held, self.rope.regime(self.base(request))
        if self.under.get(key, regime) != regime:
            held[row] = 0
        if self.rows.masks.late and self.prompts.get(key, request.prompt_length) != request.prompt_length:
            held[row] = min(held[row], max(self.prompts[key], self.rows.masks.all_of))
        self.under[key], self.prompts[key] = regime, request.prompt_length

    def alike(self, one: int, other: int) -> int:
        """How much of what two texts have in common was read in the same way."""
        if self.under.get(one) != self.under.get(other):
            return 0
        if not self.rows.masks.late or self.prompts[one] == self.prompts[other]:
            return ENDLESS
        return max(self.rows.masks.all_of, min(self.prompts[one], self.prompts[other]))

    def piece(self, start: int, end: int, request: Request) -> tuple[int, int]:
        """Where the tokens from `start` on stop to have the same frequencies, at most `end`, and the length
        of text that they are read as."""
        base = self.base(request)
        end = min(end, self.rope.last(max(base, start + 1)))
        return end, max(base, end)

    def close(self, request: Request) -> None:
        """Forget a text."""
        self.under.pop(request.id, None)
        self.prompts.pop(request.id, None)

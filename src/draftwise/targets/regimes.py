"""Reads texts as the model's own decoding does, if that treats the prompt differently from later tokens.

The model's own decoding prefills the prompt in one pass, so all of it has the rotary frequencies of the
prompt's length, and then reads one token at a time. Tokens read before a border keep their frequencies, or
are read again (`Rope`). A cache that drops old tokens hides from later tokens what the prompt's tokens see
(`View.late`).
"""

from __future__ import annotations

import warnings
from typing import Any

from ..core.request import Request
from ..errors import DraftwiseWarning
from ..models.runner import ModelRunner
from ..models.runner.positions import ENDLESS


class Regimes:
    """How each open text was read: with which rotary frequencies, and how much of it as prompt.

    A token's frequencies are those of a text of some length; `Rope.regime` identifies them.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.rope, self.prompts = runner, runner.rope, runner.prompts
        self.under: dict[int, int] = {}

    def reach(self, request: Request) -> int:
        """The longest draft that does not cross a border."""
        n = len(request.tokens)
        return self.rope.last(n) - n

    def base(self, request: Request) -> int:
        """The text length whose frequencies the first tokens are read with."""
        return len(request.tokens) if self.rope.anew else request.prompt_length

    def renew(self, row: int, request: Request) -> None:
        """Drop the tokens of a row that would now be read differently."""
        key, held, regime = request.id, self.runner.cached_lengths, self.rope.regime(self.base(request))
        if self.under.get(key, regime) != regime:
            held[row] = 0
        if self.runner.masks.late and self.prompts.get(key, request.prompt_length) != request.prompt_length:
            held[row] = min(held[row], max(self.prompts[key], self.runner.masks.all_of))
        self.under[key], self.prompts[key] = regime, request.prompt_length

    def alike(self, one: int, other: int) -> int:
        """How many of the common tokens of two texts were read in the same way."""
        if self.under.get(one) != self.under.get(other):
            return 0
        if not self.runner.masks.late or self.prompts[one] == self.prompts[other]:
            return ENDLESS
        return max(self.runner.masks.all_of, min(self.prompts[one], self.prompts[other]))

    def lasting(self, key: int, length: int) -> tuple[int, int]:
        """How a text was read, and how many of its first tokens a text with any prompt reads in that way."""
        most = max(self.runner.masks.all_of, self.prompts[key]) if self.runner.masks.late else length
        return self.under[key], min(length, most)

    def piece(self, start: int, end: int, request: Request) -> tuple[int, int]:
        """Where the tokens from `start` on stop having the same frequencies, at most `end`, and the text
        length of these frequencies."""
        base = self.base(request)
        end = min(end, self.rope.last(max(base, start + 1)))
        return end, max(base, end)

    def close(self, request: Request) -> None:
        self.under.pop(request.id, None)


def warn_of(model: Any, trained: int) -> None:
    warnings.warn(
        f"a text is longer than the {trained} tokens that {type(model).__name__} was trained for: it "
        "continues as the model's own decoding does, and may be of no use",
        DraftwiseWarning,
        stacklevel=3,
    )

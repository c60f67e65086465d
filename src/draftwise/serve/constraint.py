"""A grammar as a logits processor that tells in advance what it allows."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .compiler import SLOW

KEPT = 32  # places whose tokens are known: those of a draft are asked for again when it is verified
Bits = NDArray[np.bool_]


class Constraint:
    """A logits processor that allows what the grammar allows.

    As a processor it is called once for each committed token, with the text so far. As a `Masker` it is asked
    about drafted tokens too, and in any order: XGrammar takes back what it has read.
    """

    def __init__(self, compiled: Any, vocab_size: int) -> None:
        import xgrammar

        self.matcher = xgrammar.GrammarMatcher(compiled)
        self.bitmask, self.vocab_size = xgrammar.allocate_token_bitmask(1, vocab_size), vocab_size
        self.start = -1  # where the answer begins in the text
        self.written: list[int] = []  # the tokens of the answer that the matcher has read
        self.sure = 0  # how many of them are committed
        self.known: dict[int, tuple[Bits, int]] = {}  # what is barred after so many tokens, the only token
        self.slow = False  # whether a token took too long

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with all other tokens at -inf, shape (1, vocabulary)."""
        text = input_ids[0]
        if self.start < 0:
            self.start = len(text)
        new = text[self.start + self.sure :].tolist()
        if not self._goes(self.sure, new):
            token = new[len(self.written) - self.sure]
            raise ValueError(f"token {token} does not fit the grammar")
        self.sure = len(self.written)
        scores = self._barred(scores)
        if self.slow:  # it grows with the text: the other texts wait for it
            raise UserError(f"the grammar takes more than {SLOW:g} seconds a token: make it less ambiguous")
        return scores

    def mask(self, text: Sequence[int], start: int, ahead: Sequence[int], scores: Any) -> Any:
        """The logits of a drafter, shape (vocabulary,), with -inf for what is not allowed."""
        return self._barred(scores) if self._at(text, start, ahead) else scores

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        """The one token that is allowed; -1 if there are several, or anything is."""
        if not self._at(text, start, ahead) or self.matcher.is_terminated():
            return -1
        return self._look()[1]

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        """Whether a token is allowed."""
        return self._at(text, start, [*ahead, token])

    def _at(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> bool:
        """Read as far as these tokens; False if one of them is not allowed."""
        if self.start < 0:
            self.start = start
        base = min(self.sure, len(text) - self.start)
        return self._goes(base, [*text[self.start + base :], *ahead])

    def _goes(self, base: int, tokens: Sequence[int]) -> bool:
        """Have read the first `base` tokens and then these; after the end of the grammar anything goes."""
        same = base
        for token in tokens:
            if same == len(self.written) or self.written[same] != token:
                break
            same += 1
        self._back(same)
        for token in tokens[same - base :]:
            if self.matcher.is_terminated():
                break
            if not self.matcher.accept_token(token):
                return False
            self.written.append(token)
        return True

    def _back(self, length: int) -> None:
        if length < len(self.written):
            self.matcher.rollback(len(self.written) - length)
            del self.written[length:]
            self.sure = min(self.sure, length)
            self.known = {n: found for n, found in self.known.items() if n <= length}

    def _look(self) -> tuple[Bits, int]:
        """What is barred now, shape (vocabulary,), and the only token that is not, else -1."""
        at = len(self.written)
        if at not in self.known:
            began = thread_time()
            self.matcher.fill_next_token_bitmask(self.bitmask)
            self.slow |= thread_time() - began > SLOW
            bits = np.unpackbits(self.bitmask.numpy().view(np.uint8)[0], bitorder="little")
            free = np.flatnonzero(bits[: self.vocab_size])
            if len(self.known) >= KEPT:
                del self.known[min(self.known)]
            barred = bits[: self.vocab_size] == 0
            self.known[at] = barred, int(free[0]) if len(free) == 1 else -1
        return self.known[at]

    def _barred(self, scores: Any) -> Any:
        """Scores, shape (..., tokens), with -inf for what is barred now, and beyond the vocabulary."""
        if self.matcher.is_terminated():
            return scores
        barred, _ = self._look()
        n = scores.shape[-1]
        if n > len(barred):
            barred = np.pad(barred, (0, n - len(barred)), constant_values=True)
        return scores.masked_fill(scores.new_tensor(barred[:n]) > 0, -inf)

"""A grammar as a logits processor that tells in advance what it allows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

KEPT = 32  # places whose tokens are known: those of a draft are asked for again when it is verified
SLOW, PACE = 0.25, 0.02  # seconds that a grammar may take, and how many more with each token
# For llguidance's NoExtension and NoExtensionBias.
NOWHERE = "nothing may follow, and no text is whole: a rule has no end, or its parts exclude each other"
Bits = NDArray[np.bool_]


def error_of(matcher: Any) -> str:
    """Return what is wrong with a matcher in words for people; empty if nothing is."""
    said = str(matcher.get_error()) if matcher.is_error() else ""
    return (
        NOWHERE if said.startswith("NoExtension") else " ".join(said.split()).removesuffix(" <non-verbose/>")
    )


class Constraint:
    """A logits processor that allows what the grammar allows.

    As a processor it is called once for each committed token, with the text so far. As a `TokenMask` it is
    asked about drafted tokens too, and in any order: llguidance takes back what it has read. It never reads
    one of the tokens `ends`: these are allowed where the text may end, and anything goes after them.
    `special` are the tokens that are no text: where a grammar allows all but something, llguidance's masks
    have them too.
    """

    def __init__(
        self, matcher: Any, vocab_size: int, ends: Collection[int], special: Sequence[int] = ()
    ) -> None:
        self.origin, self.matcher, self.error = matcher, matcher.deep_copy(), ""
        self.vocab_size, self.ends, self.special = vocab_size, frozenset(ends), np.array(special, dtype=int)
        self.words = np.zeros((vocab_size + 31) // 32, dtype=np.int32)
        self.start = -1  # where the answer begins in the text
        self.written: list[int] = []  # the tokens of the answer that were read
        self.sure = 0  # how many of them are committed
        self.known: dict[int, tuple[Bits, int]] = {}  # what is barred after so many tokens, the only token
        self.left = SLOW  # seconds that it may still take

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with all other tokens at -inf, shape (1, vocabulary)."""
        text = input_ids[0]
        if self.start < 0:
            self.start = len(text)
        new = text[self.start + self.sure :].tolist()
        if not self._goes(self.sure, new):
            if self.error:
                raise UserError(f"the grammar ends the text: {self.error[:120]}")
            token = new[len(self.written) - self.sure]
            raise ValueError(f"token {token} does not fit the grammar")
        self.sure = len(self.written)
        scores = self._barred(scores)
        if self.left < 0:  # the other texts wait for it
            raise UserError(f"the grammar takes more than {PACE:g} seconds a token: make it simpler")
        return scores

    def mask(self, text: Sequence[int], start: int, ahead: Sequence[int], scores: Any) -> Any:
        """The logits of a drafter, shape (vocabulary,), with -inf for what is not allowed."""
        return self._barred(scores) if self._at(text, start, ahead) else scores

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        """The one token that is allowed; -1 if there are several, or anything is."""
        if not self._at(text, start, ahead) or self.over:
            return -1
        return self._look()[1]

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        """Whether a token is allowed."""
        return self._at(text, start, [*ahead, token])

    @property
    def over(self) -> bool:
        """Whether the text has ended."""
        return bool(self.written) and self.written[-1] in self.ends

    def _at(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> bool:
        """Read as far as these tokens; False if one of them is not allowed."""
        if self.start < 0:
            self.start = start
        base = min(self.sure, len(text) - self.start)
        return self._goes(base, [*text[self.start + base :], *ahead])

    def _goes(self, base: int, tokens: Sequence[int]) -> bool:
        """Have read the first `base` tokens and then these; after the end of the text anything goes."""
        same = base
        for token in tokens:
            if same == len(self.written) or self.written[same] != token:
                break
            same += 1
        self._back(same)
        for token in tokens[same - base :]:
            if self.over:
                break
            if not self._reads(token):
                return False
            self.written.append(token)
        return True

    def _reads(self, token: int) -> bool:
        if token in self.ends:
            return bool(self.matcher.is_accepting())
        return bool(self.matcher.try_consume_tokens([token])) or self._fails()

    def _may_follow(self, token: int) -> bool:
        """Return whether a token that is no text may follow."""
        ends = token in self.ends
        return bool(self.matcher.is_accepting() if ends else self.matcher.validate_tokens([token]))

    def _fails(self) -> bool:
        """Continue before a token that was too much, as llguidance does not: it may be a drafted one."""
        if self.matcher.is_error():
            self.error, self.matcher = error_of(self.matcher), self.origin.deep_copy()
            self.matcher.try_consume_tokens(self.written)
        return False

    def _back(self, length: int) -> None:
        if length < len(self.written):
            self.matcher.rollback(len(self.written) - length - self.over)
            del self.written[length:]
            self.sure = min(self.sure, length)
            self.known = {n: found for n, found in self.known.items() if n <= length}

    def _look(self) -> tuple[Bits, int]:
        """What is barred now, shape (vocabulary,), and the only token that is not, else -1.

        Raises:
            UserError: the grammar takes more than its bounds allow.
        """
        at = len(self.written)
        if at not in self.known:
            began = thread_time()
            self.matcher.unsafe_compute_mask_ptr(self.words.ctypes.data, self.words.nbytes)
            self.left = min(SLOW, self.left + PACE - (thread_time() - began))
            if self.matcher.is_error():
                self._fails()
                raise UserError(f"the grammar ends the text: {self.error[:120]}")
            bits = np.unpackbits(self.words.view(np.uint8), bitorder="little")[: self.vocab_size]
            for token in self.special[bits[self.special] == 1].tolist():
                bits[token] = self._may_follow(token)
            free = np.flatnonzero(bits)
            if len(self.known) >= KEPT:
                del self.known[min(self.known)]
            self.known[at] = bits == 0, int(free[0]) if len(free) == 1 else -1
        return self.known[at]

    def _barred(self, scores: Any) -> Any:
        """Scores, shape (..., tokens), with -inf for what is barred now, and beyond the vocabulary."""
        if self.over:
            return scores
        barred, _ = self._look()
        n = scores.shape[-1]
        if n > len(barred):
            barred = np.pad(barred, (0, n - len(barred)), constant_values=True)
        return scores.masked_fill(scores.new_tensor(barred[:n]) > 0, -inf)

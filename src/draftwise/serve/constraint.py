"""A grammar as a logits processor that says in advance what it allows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

MAX_MASKS = 32  # places whose masks are kept: those of a draft are asked for again when it is verified
SPARE_SECONDS, SECONDS_PER_TOKEN = 0.25, 0.02  # that a grammar may take, and how many more with each token
# For llguidance's NoExtension and NoExtensionBias.
NO_EXTENSION = "nothing may follow, and no text is whole: a rule has no end, or its parts exclude each other"
Bits = NDArray[np.bool_]


def error_of(matcher: Any) -> str:
    """Return what is wrong with a matcher in words for people; empty if nothing is."""
    message = str(matcher.get_error()) if matcher.is_error() else ""
    if message.startswith("NoExtension"):
        return NO_EXTENSION
    return " ".join(message.split()).removesuffix(" <non-verbose/>")


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
        self.tokens: list[int] = []  # those of the answer that were read
        self.committed = 0  # how many of them are
        self.masks: dict[int, tuple[Bits, int]] = {}  # what is barred after so many tokens, the only token
        self.seconds_left = SPARE_SECONDS

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores with all other tokens at -inf, shape (1, vocabulary)."""
        text = input_ids[0]
        if self.start < 0:
            self.start = len(text)
        new = text[self.start + self.committed :].tolist()
        if not self._read(self.committed, new):
            if self.error:
                raise UserError(f"the grammar ends the text: {self.error[:120]}")
            token = new[len(self.tokens) - self.committed]
            raise ValueError(f"token {token} does not fit the grammar")
        self.committed = len(self.tokens)
        scores = self._bar(scores)
        if self.seconds_left < 0:  # the other texts wait for it
            raise UserError(
                f"the grammar takes more than {SECONDS_PER_TOKEN:g} seconds a token: make it simpler"
            )
        return scores

    def mask(self, text: Sequence[int], start: int, ahead: Sequence[int], scores: Any) -> Any:
        """The logits of a drafter, shape (vocabulary,), with -inf for what is not allowed."""
        return self._bar(scores) if self._read_text(text, start, ahead) else scores

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        """The one token that is allowed; -1 if there are several, or anything is."""
        if not self._read_text(text, start, ahead) or self.is_over:
            return -1
        return self._mask()[1]

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        """Return whether a token is allowed."""
        return self._read_text(text, start, [*ahead, token])

    @property
    def is_over(self) -> bool:
        """True once the text has ended."""
        return bool(self.tokens) and self.tokens[-1] in self.ends

    def _read_text(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> bool:
        """Read as far as these tokens; False if one of them is not allowed."""
        if self.start < 0:
            self.start = start
        base = min(self.committed, len(text) - self.start)
        return self._read(base, [*text[self.start + base :], *ahead])

    def _read(self, base: int, tokens: Sequence[int]) -> bool:
        """Read the first `base` tokens and then these; after the end of the text anything goes."""
        same = base
        for token in tokens:
            if same == len(self.tokens) or self.tokens[same] != token:
                break
            same += 1
        self._truncate(same)
        for token in tokens[same - base :]:
            if self.is_over:
                break
            if not self._read_token(token):
                return False
            self.tokens.append(token)
        return True

    def _read_token(self, token: int) -> bool:
        if token in self.ends:
            return bool(self.matcher.is_accepting())
        if self.matcher.try_consume_tokens([token]):
            return True
        self._recover()
        return False

    def _recover(self) -> None:
        """Continue before a token that was too much, as llguidance does not: it may be a drafted one."""
        if self.matcher.is_error():
            self.error, self.matcher = error_of(self.matcher), self.origin.deep_copy()
            self.matcher.try_consume_tokens(self.tokens)

    def _truncate(self, length: int) -> None:
        if length < len(self.tokens):
            self.matcher.rollback(len(self.tokens) - length - self.is_over)
            del self.tokens[length:]
            self.committed = min(self.committed, length)
            self.masks = {n: mask for n, mask in self.masks.items() if n <= length}

    def _mask(self) -> tuple[Bits, int]:
        """Return what is barred now, shape (vocabulary,), and the only token that is not, else -1.

        Raises:
            UserError: the grammar takes more than its bounds allow.
        """
        at = len(self.tokens)
        if at not in self.masks:
            start_time = thread_time()
            self.matcher.unsafe_compute_mask_ptr(self.words.ctypes.data, self.words.nbytes)
            left = self.seconds_left + SECONDS_PER_TOKEN - (thread_time() - start_time)
            self.seconds_left = min(SPARE_SECONDS, left)
            if self.matcher.is_error():
                self._recover()
                raise UserError(f"the grammar ends the text: {self.error[:120]}")
            bits = np.unpackbits(self.words.view(np.uint8), bitorder="little")[: self.vocab_size]
            for token in self.special[bits[self.special] == 1].tolist():
                ends = token in self.ends
                bits[token] = self.matcher.is_accepting() if ends else self.matcher.validate_tokens([token])
            allowed = np.flatnonzero(bits)
            if len(self.masks) >= MAX_MASKS:
                del self.masks[min(self.masks)]
            self.masks[at] = bits == 0, int(allowed[0]) if len(allowed) == 1 else -1
        return self.masks[at]

    def _bar(self, scores: Any) -> Any:
        """Return scores, shape (..., tokens), with -inf for what is barred now, and beyond the vocabulary."""
        if self.is_over:
            return scores
        barred, _ = self._mask()
        n = scores.shape[-1]
        if n > len(barred):
            barred = np.pad(barred, (0, n - len(barred)), constant_values=True)
        return scores.masked_fill(scores.new_tensor(barred[:n]) > 0, -inf)

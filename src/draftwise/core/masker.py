"""The logits processor that tells in advance what it leaves, so that drafts keep to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class TokenMask(Protocol):
    """A logits processor, such as a grammar, that can be asked about text that may yet be rejected.

    Each method is asked about the place after `text` and the drafted tokens `ahead`; the answer begins at
    `text[start]`. Places come in any order: drafts are rejected, and a recorder may go back. Drafts then keep
    to what is allowed, and a place that leaves one token only costs nothing. The text stays what
    `__call__` makes of it: a wrong answer costs speed alone, and so does what raises.
    """

    def mask(self, text: Sequence[int], start: int, ahead: Sequence[int], scores: Any) -> Any:
        """A drafter's logits of the next token, shape (vocabulary,), with -inf where it is not allowed.

        Called before a drafting model chooses. The model's vocabulary may be padded otherwise than the
        target's. The input must not change.

        Examples:
            >>> class Even:
            ...     def mask(self, text, start, ahead, scores):
            ...         return [-math.inf if token % 2 else score for token, score in enumerate(scores)]
            >>> Even().mask([0, 1, 2], 1, [4], [0.5, 0.5, 0.1])
            [0.5, -inf, 0.1]
        """
        ...

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        """The token id that is alone allowed next; -1 if there are several, or none.

        Called before and after the tokens of a draft.

        Examples:
            >>> class Commas:
            ...     def only(self, text, start, ahead):
            ...         return 7 if (len(text) - start + len(ahead)) % 2 else -1
            >>> Commas().only([0, 1, 2], 1, [4]), Commas().only([0, 1, 2], 1, [4, 7, 4])
            (7, 7)
        """
        ...

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        """Whether a token is allowed next.

        Called for the tokens of drafts that were looked up.

        Examples:
            >>> class Rising:
            ...     def allows(self, text, start, ahead, token):
            ...         return token > [*text, *ahead][-1]
            >>> Rising().allows([0, 1, 2], 1, [4], 3)
            False
        """
        ...

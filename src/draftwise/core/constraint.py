"""What a request's processors allow after its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import one_line
from .masker import TokenMask
from .request import Request


class Constraint:
    """What the processors of a request allow after its text and the tokens `ahead`.

    A processor that raises is not asked again: `warning` has the error, in one line.
    """

    def __init__(
        self, maskers: Sequence[TokenMask], text: Sequence[int], start: int, ahead: Sequence[int] = ()
    ) -> None:
        self.maskers, self.text, self.start, self.ahead = list(maskers), text, start, tuple(ahead)
        self.warning = ""

    def after(self, tokens: Sequence[int]) -> Constraint:
        """The same after some more tokens."""
        return Constraint(self.maskers, self.text, self.start, (*self.ahead, *tokens))

    def mask(self, path: Sequence[int], row: Any) -> Any:
        """The logits of the token after `path`, with -inf where it is not allowed."""
        for masker in list(self.maskers):
            try:
                row = masker.mask(self.text, self.start, (*self.ahead, *path), row)
            except Exception as error:
                self._drop(masker, error)
        return row

    def only(self, path: Sequence[int]) -> int:
        """The one token that is allowed after `path`; -1 if there are several."""
        for masker in list(self.maskers):
            try:
                if (token := int(masker.only(self.text, self.start, (*self.ahead, *path)))) >= 0:
                    return token
            except Exception as error:
                self._drop(masker, error)
        return -1

    def allows(self, path: Sequence[int], token: int) -> bool:
        """Whether a token is allowed after `path`."""
        for masker in list(self.maskers):
            try:
                if not masker.allows(self.text, self.start, (*self.ahead, *path), token):
                    return False
            except Exception as error:
                self._drop(masker, error)
        return True

    def forced(self, path: Sequence[int], most: int) -> list[int]:
        """The next tokens after `path`, as long as one alone is allowed."""
        found: list[int] = []
        while len(found) < most and (token := self.only([*path, *found])) >= 0:
            found.append(token)
        return found

    def _drop(self, masker: TokenMask, error: Exception) -> None:
        self.maskers.remove(masker)
        self.warning = self.warning or f"{type(masker).__name__}: {one_line(error)}"


def constraint_of(request: Request, length: int | None = None) -> Constraint | None:
    """The guide of a request, or of its first `length` tokens; None if no processor tells."""
    maskers = [one for one in request.sampling.processors if isinstance(one, TokenMask)]
    if not maskers:
        return None
    text = request.tokens if length is None else request.tokens[:length]
    return Constraint(maskers, text, request.prompt_length)

"""What the processors of a request allow after its text, asked in advance so that drafts keep to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from ..errors import one_line
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
        return Constraint(self.maskers, self.text, self.start, (*self.ahead, *tokens))

    def mask(self, path: Sequence[int], row: Any) -> Any:
        rows = [row]
        for masked in self._ask(lambda masker, *place: masker.mask(*place, rows[-1]), path):
            rows.append(masked)
        return rows[-1]

    def only(self, path: Sequence[int]) -> int:
        """Return the one token that is allowed after `path`; -1 if there are several."""
        tokens = self._ask(lambda masker, *place: int(masker.only(*place)), path)
        return next((token for token in tokens if token >= 0), -1)

    def allows(self, path: Sequence[int], token: int) -> bool:
        return all(self._ask(lambda masker, *place: bool(masker.allows(*place, token)), path))

    def forced(self, path: Sequence[int], most: int) -> list[int]:
        """Return the next tokens after `path`, as long as one alone is allowed."""
        found: list[int] = []
        while len(found) < most and (token := self.only([*path, *found])) >= 0:
            found.append(token)
        return found

    def _ask(self, question: Callable[..., Any], path: Sequence[int]) -> Iterator[Any]:
        """The answers of the processors about the place after `path`."""
        for masker in list(self.maskers):
            try:
                answer = question(masker, self.text, self.start, (*self.ahead, *path))
            except Exception as error:
                self.maskers.remove(masker)
                self.warning = self.warning or f"{type(masker).__name__}: {one_line(error)}"
            else:
                yield answer


def constraint_of(request: Request, length: int | None = None) -> Constraint | None:
    """Return the constraint of a request, or of its first `length` tokens; None if no processor tells."""
    maskers = [one for one in request.sampling.processors if isinstance(one, TokenMask)]
    if not maskers:
        return None
    text = request.tokens if length is None else request.tokens[:length]
    return Constraint(maskers, text, request.prompt_length)


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

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        """Return the token id that is alone allowed next; -1 if there are several, or none.

        Called before and after the tokens of a draft.

        Examples:
            >>> class Commas:
            ...     def only(self, text, start, ahead):
            ...         return 7 if (len(text) - start + len(ahead)) % 2 else -1
            >>> Commas().only([0, 1, 2], 1, [4]), Commas().only([0, 1, 2], 1, [4, 7, 4])
            (7, 7)
        """

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        """Return whether a token is allowed next.

        Called for the tokens of drafts that were looked up.

        Examples:
            >>> class Rising:
            ...     def allows(self, text, start, ahead, token):
            ...         return token > [*text, *ahead][-1]
            >>> Rising().allows([0, 1, 2], 1, [4], 3)
            False
        """

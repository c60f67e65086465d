"""A vocabulary of single characters, for grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Texts:
    """Tokens that are these texts; the last one ends a text, and `special` ones are no text."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[str], special: Sequence[int] = ()) -> None:
        self.tokens = [token.encode() for token in tokens]
        self.eos_token_id = len(tokens) - 1
        self.special_token_ids = [*special, self.eos_token_id]

    def __call__(self, said: bytes | str) -> list[int]:
        """The longest token that fits, one after another."""
        text, found = said.encode() if isinstance(said, str) else said, list[int]()
        while text:
            fits = [k for k, token in enumerate(self.tokens[:-1]) if token and text.startswith(token)]
            found.append(max(fits, key=lambda k: len(self.tokens[k]), default=0))
            text = text[max(1, len(self.tokens[found[-1]])) :]
        return found


def vocabulary(tokens: Sequence[str], special: Sequence[int] = ()) -> Any:
    """What llguidance reads of them."""
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Texts(tokens, special)))

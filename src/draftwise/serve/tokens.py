"""The text and the bytes of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..generation.text import BROKEN, BYTE, SILENT, Detokenizer, decode

END = -1  # in place of a token


def byte_letters() -> dict[str, int]:
    """The letters that stand for bytes in the vocabularies of byte-level BPE: printable bytes are themselves,
    the others follow from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class TokenTexts:
    """The text of each token as it stands within a text: with its first space, and special ones by name."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.letters = tokenizer, byte_letters()
        self._texts: dict[int, str] = {}
        self._lead: tuple[int, int] | None = None

    def count(self, text: str) -> int:
        """How many tokens a text has by itself."""
        return len(self.tokenizer.encode(text, add_special_tokens=False)) if text else 0

    def text(self, token: int) -> str:
        """The token's text; what is no whole character is U+FFFD."""
        if token not in self._texts:
            lead, length = self._before()
            self._texts[token] = decode(self.tokenizer, [lead, token], special=True)[length:]
        return self._texts[token]

    def begins(self, tokens: Sequence[int], text: str) -> list[int]:
        """Where the text of each token begins in their `text`; those of one character begin where it does."""
        spoken, at, found = Detokenizer(self.tokenizer), 0, dict[int, int]()
        for place, token in enumerate([*tokens, END]):
            silent = token == END or spoken.kinds[token] == SILENT
            pieces = spoken.flush(str(place - 1)) if silent else spoken.push([token], str(place))
            for piece in pieces:
                found.setdefault(int(piece.source), at)
                at += len(piece.text)
            # Special tokens are in some texts, and not in others.
            if silent and token != END and text.startswith(name := self.text(token), at):
                found[place] = at
                at += len(name)
        begins = []
        for place in reversed(range(len(tokens))):
            at = found.get(place, at)
            begins.append(min(at, len(text)))
        return begins[::-1]

    def bytes(self, token: int) -> bytes:
        """The token's bytes."""
        text = self.text(token)
        if BROKEN not in text:
            return text.encode("utf-8", "surrogatepass")
        name = str(getattr(self.tokenizer, "convert_ids_to_tokens", str)(token))
        if found := BYTE.fullmatch(name):
            return bytes([int(found[1], 16)])
        if all(letter in self.letters for letter in name):
            return bytes(self.letters[letter] for letter in name)
        return text.encode()

    def _before(self) -> tuple[int, int]:
        """A token to decode before others, since decoders drop the first space of a text; its length."""
        if self._lead is None:
            token = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])[-1]
            self._lead = (token, len(decode(self.tokenizer, [token], special=True)))
        return self._lead

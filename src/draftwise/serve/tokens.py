"""The text and the bytes of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..generation.text import BROKEN, BYTE, SILENT, Detokenizer, decode

END = -1  # in place of a token


def byte_letters() -> dict[str, int]:
    """Return the letters that stand for bytes in the vocabularies of byte-level BPE: printable bytes are
    themselves, the others follow from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class TokenTexts:
    """The text of each token as it stands within a text: with its first space, and special ones by name."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.letters = tokenizer, byte_letters()
        self._texts: dict[int, str] = {}
        # A token to decode before others, since decoders drop the first space of a text; its length.
        self._lead: tuple[int, int] | None = None

    def count(self, text: str) -> int:
        """Return how many tokens a text has by itself."""
        return len(self.tokenizer.encode(text, add_special_tokens=False)) if text else 0

    def text(self, token: int) -> str:
        """Return the token's text; what is no whole character is U+FFFD."""
        if token not in self._texts:
            if self._lead is None:
                lead = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])[-1]
                self._lead = (lead, len(decode(self.tokenizer, [lead], special=True)))
            lead, length = self._lead
            self._texts[token] = decode(self.tokenizer, [lead, token], special=True)[length:]
        return self._texts[token]

    def offsets(self, tokens: Sequence[int], text: str) -> list[int]:
        """Return where the text of each token begins in their `text`; those of one character begin where it
        does."""
        detokenizer, at, begins = Detokenizer(self.tokenizer), 0, dict[int, int]()
        for i, token in enumerate([*tokens, END]):
            silent = token == END or detokenizer.kinds[token] == SILENT
            pieces = detokenizer.flush(str(i - 1)) if silent else detokenizer.push([token], str(i))
            for piece in pieces:
                begins.setdefault(int(piece.source), at)
                at += len(piece.text)
            # Special tokens are in some texts, and not in others.
            if silent and token != END and text.startswith(name := self.text(token), at):
                begins[i] = at
                at += len(name)
        offsets = []
        for i in reversed(range(len(tokens))):
            at = begins.get(i, at)
            offsets.append(min(at, len(text)))
        return offsets[::-1]

    def bytes(self, token: int) -> bytes:
        text = self.text(token)
        if BROKEN not in text:
            return text.encode("utf-8", "surrogatepass")
        name = str(getattr(self.tokenizer, "convert_ids_to_tokens", str)(token))
        if byte := BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        if all(letter in self.letters for letter in name):
            return bytes(self.letters[letter] for letter in name)
        return text.encode()

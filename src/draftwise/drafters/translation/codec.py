"""One tokenizer as translation needs it: text to tokens with their places, and tokens to text."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ...errors import UserError

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a part of a character decodes to
CONTEXT = 12  # tokens before a place, enough that those after it are encoded and decoded as in the whole text

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's name of a byte-fallback token


def _alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level tokenizer's names stands for (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_ALPHABET = _alphabet()


class Codec:
    """A tokenizer of Transformers, with its special tokens set apart.

    Attributes:
        special: The names of special tokens, by id; the one for unknown characters is not among them.
        unknown: The token for characters that the vocabulary lacks.
        prefix: The tokens that begin a text, such as `<s>`.
        end: The token that ends a text; None if there is none.

    Raises:
        UserError: a tokenizer without a fast form, which cannot say where in a text its tokens are.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.fast: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self.fast is None:
            raise UserError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')} has no fast form, which translating "
                "drafts needs: save it with tokenizer.json, or name a drafter with the target's tokenizer"
            )
        names = self.fast.id_to_token
        special = {i: str(names(i)) for i in tokenizer.all_special_ids}
        special |= {i: str(t.content) for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self._name(tokenizer, special)

    def _name(self, tokenizer: Any, special: dict[int, str]) -> None:
        """Tell the tokens with a meaning of their own apart."""
        self.special = special
        self.end: int | None = tokenizer.eos_token_id
        self.unknown: int | None = getattr(tokenizer, "unk_token_id", None)
        if self.unknown is not None and self.unknown != self.end:
            self.special.pop(self.unknown, None)
        self.silent = {tokenizer.bos_token_id, tokenizer.pad_token_id}
        whole, own = list(tokenizer("a")["input_ids"]), self.encode("a")[0]
        begin = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), 0)
        self.prefix = whole[:begin]

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of a text without a prefix, and the characters (first, last + 1) of each."""
        made = self.fast.encode(text, add_special_tokens=False)
        return made.ids, made.offsets

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of some tokens, without `special` ones."""
        text: str = self.fast.decode(tokens, skip_special_tokens=not special)
        return text

    def last(self, tokens: Sequence[int]) -> list[int]:
        """The last `CONTEXT` tokens, or a few more so that they begin with a whole character."""
        begins = (max(0, len(tokens) - CONTEXT - more) for more in range(4))
        windows = (list(tokens[begin:]) for begin in begins)
        return next((w for w in windows if not self.decode(w).startswith(BROKEN)), list(tokens[-CONTEXT:]))

    def spellings(self, size: int) -> dict[bytes, int]:
        """The token that stands for some bytes within a text, for every token below `size` that is plain."""
        anchor = self.encode("a")[0][-1:]
        before = self.decode(anchor)
        plain = [
            i
            for i in range(min(size, self.fast.get_vocab_size()))
            if i not in self.special and i != self.unknown
        ]
        texts = self.fast.decode_batch([[*anchor, i] for i in plain], skip_special_tokens=True)
        found: dict[bytes, int] = {}
        fallback: dict[bytes, int] = {}
        for i, text in zip(plain, texts, strict=True):
            name = self.fast.id_to_token(i) or ""
            if byte := _BYTE.fullmatch(name):
                fallback.setdefault(bytes([int(byte[1], 16)]), i)
            elif BROKEN in text and all(c in _ALPHABET for c in name):
                found.setdefault(bytes(_ALPHABET[c] for c in name), i)
            elif text.startswith(before) and len(text) > len(before):
                found.setdefault(text[len(before) :].encode(), i)
        return fallback | found


class GgufCodec(Codec):
    """The tokenizer of a GGUF file, whose tokens are bytes: their sizes tell their places in a text."""

    def __init__(self, tokenizer: Any) -> None:
        self.own = tokenizer
        self._name(tokenizer, {i: tokenizer.tokens[i] for i in tokenizer.all_special_ids})

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """As for any tokenizer."""
        ids: list[int] = list(self.own.encode(text, add_special_tokens=False))
        begins = list(accumulate((len(c.encode("utf-8", "replace")) for c in text), initial=0))
        sizes = [len(self.own.piece(i)) for i in ids]
        at = begins[-1] - sum(sizes)  # below 0, if a space is put before the text
        spans = []
        for size in sizes:
            first = bisect_right(begins, max(0, at)) - 1
            at += size
            spans.append((first, max(first, min(bisect_left(begins, at), len(text)))))
        return ids, spans

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """As for any tokenizer."""
        text: str = self.own.decode(tokens, skip_special_tokens=not special)
        return text

    def spellings(self, size: int) -> dict[bytes, int]:
        """As for any tokenizer."""
        plain = [i for i in range(min(size, self.own.size)) if i not in self.special and i != self.unknown]
        found: dict[bytes, int] = {}
        for i in sorted(plain, key=lambda i: bool(_BYTE.fullmatch(self.own.tokens[i]))):
            if piece := self.own.piece(i):
                found.setdefault(piece, i)
        return found


def codec_of(tokenizer: Any) -> Codec:
    """The codec of a tokenizer of Transformers or of a GGUF file.

    Raises:
        UserError: a tokenizer that cannot say where in a text its tokens are.
    """
    return GgufCodec(tokenizer) if hasattr(tokenizer, "piece") else Codec(tokenizer)


def complete(text: str) -> str:
    """A text without the parts of a character at its end."""
    return text[: max(len(text.rstrip(BROKEN)), len(text) - 3)]

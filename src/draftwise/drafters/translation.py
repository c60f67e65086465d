"""Between two tokenizers: texts, drafts and vocabularies of one in tokens of the other. No torch."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from ..errors import UserError

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a part of a character decodes to
CONTEXT = 12  # tokens before a place, enough that those after it are encoded and decoded as in the whole text

OVERLAP = 16  # tokens before the end of a text that are encoded again when it grows
PARTS = 3  # tokens at the end of a text that may be parts of one character

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's name of a byte-fallback token


def _alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level tokenizer's names stands for (GPT-2's table)."""
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
        """Return the tokens of a text without a prefix, and the characters (first, last + 1) of each."""
        encoding = self.fast.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of some tokens, without `special` ones."""
        text: str = self.fast.decode(tokens, skip_special_tokens=not special)
        return text

    def last(self, tokens: Sequence[int]) -> list[int]:
        """Return the last `CONTEXT` tokens, or a few more so that they begin with a whole character."""
        begins = (max(0, len(tokens) - CONTEXT - more) for more in range(4))
        windows = (list(tokens[begin:]) for begin in begins)
        return next((w for w in windows if not self.decode(w).startswith(BROKEN)), list(tokens[-CONTEXT:]))

    def spellings(self, size: int) -> dict[bytes, int]:
        """Return the token for some bytes within a text, for every token below `size` that is plain."""
        anchor = self.encode("a")[0][-1:]
        before = self.decode(anchor)
        ids = range(min(size, self.fast.get_vocab_size()))
        plain = [i for i in ids if i not in self.special and i != self.unknown]
        texts = self.fast.decode_batch([[*anchor, i] for i in plain], skip_special_tokens=True)
        by_bytes, fallback = dict[bytes, int](), dict[bytes, int]()
        for i, text in zip(plain, texts, strict=True):
            name = self.fast.id_to_token(i) or ""
            if byte := _BYTE.fullmatch(name):
                fallback.setdefault(bytes([int(byte[1], 16)]), i)
            elif BROKEN in text and all(c in _ALPHABET for c in name):
                by_bytes.setdefault(bytes(_ALPHABET[c] for c in name), i)
            elif text.startswith(before) and len(text) > len(before):
                by_bytes.setdefault(text[len(before) :].encode(), i)
        return fallback | by_bytes


class GgufCodec(Codec):
    """The tokenizer of a GGUF file, whose tokens are bytes: their sizes tell their places in a text."""

    def __init__(self, tokenizer: Any) -> None:
        self.own = tokenizer
        self._name(tokenizer, {i: tokenizer.tokens[i] for i in tokenizer.all_special_ids})

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
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
        text: str = self.own.decode(tokens, skip_special_tokens=not special)
        return text

    def spellings(self, size: int) -> dict[bytes, int]:
        plain = [i for i in range(min(size, self.own.size)) if i not in self.special and i != self.unknown]
        by_bytes: dict[bytes, int] = {}
        for i in sorted(plain, key=lambda i: bool(_BYTE.fullmatch(self.own.tokens[i]))):
            if piece := self.own.piece(i):
                by_bytes.setdefault(piece, i)
        return by_bytes


def codec_of(tokenizer: Any) -> Codec:
    """Return the codec of a tokenizer of Transformers or of a GGUF file.

    Raises:
        UserError: a tokenizer that cannot say where in a text its tokens are.
    """
    return GgufCodec(tokenizer) if hasattr(tokenizer, "piece") else Codec(tokenizer)


def complete(text: str) -> str:
    """Return a text without the parts of a character at its end."""
    return text[: max(len(text.rstrip(BROKEN)), len(text) - 3)]


class Reading:
    """A text of the target as tokens of the drafter, kept up to date as the text grows.

    Text is decoded and encoded piece by piece, the last tokens once more with what follows them, so that
    they become what the whole text would be encoded to. A special token of the target becomes the drafter's
    of the same name, the end of the text its own; any other that stands between texts becomes a line break.

    Attributes:
        ids: The drafter's tokens.
        spans: The characters (first, last + 1) of each, counted from the beginning of the text.
        done: How many of the target's tokens these stand for: all but the parts of a character at the end.
        length: Characters of the text.
    """

    def __init__(self, target: Codec, drafter: Codec) -> None:
        self.target, self.drafter = target, drafter
        self.named = {name: i for i, name in drafter.special.items()}
        self.tokens: list[int] = []
        self.done = self.mark = 0  # the last tokens are decoded together with those from `mark` on
        self._restart()

    def read(self, tokens: Sequence[int]) -> None:
        """Follow the text to the end of `tokens`; start again if those read before were others."""
        if len(tokens) < self.done or list(tokens[: self.done]) != self.tokens[: self.done]:
            self._restart()
        self.tokens = list(tokens)
        while self.done < len(tokens):
            special = next(
                (i for i in range(self.done, len(tokens)) if tokens[i] in self.target.special), None
            )
            before = self.done
            self._text(len(tokens) if special is None else special, ends=special is not None)
            if special is not None:
                self._special(tokens[special])
                self.mark = self.done = special + 1
            elif self.done == before:
                return  # parts of a character

    def _restart(self) -> None:
        self.ids = list(self.drafter.prefix)
        self.spans = [(0, 0)] * len(self.ids)
        self.done = self.mark = 0
        self.first = len(self.ids)  # the drafter's token with which `text` begins, after the last special one
        self.text, self.begin = "", 0

    @property
    def length(self) -> int:
        """The characters of the text."""
        return self.begin + len(self.text)

    def _text(self, end: int, *, ends: bool) -> None:
        """Decode the tokens up to `end`; parts of a character wait for the others, unless the text `ends`."""
        first = end if ends else max(self.done, end - PARTS - 1)
        whole = (n for n in range(end, first, -1) if not self._decoded(n).endswith(BROKEN))
        last = next(whole, end if ends or end - self.done > PARTS else self.done)
        if last > self.done:
            more = self._decoded(last)[len(self._decoded(self.done)) :]
            self.mark, self.done = self.done, last
            self._add(more)

    def _decoded(self, end: int) -> str:
        return self.target.decode(self.tokens[self.mark : end])

    def _special(self, token: int) -> None:
        name = self.target.special[token]
        other = self.drafter.end if token == self.target.end else self.named.get(name)
        is_prefix = not self.text and self.ids == self.drafter.prefix and other in self.ids
        if other is not None and not is_prefix:
            self.begin += len(self.text)
            self.ids.append(other)
            self.spans.append((self.begin, self.begin))
            self.first, self.text = len(self.ids), ""
        elif other is None and token not in self.target.silent and self.text[-1:].strip():
            self._add("\n")

    def _add(self, more: str) -> None:
        """Append text: encode the end of what was there once more, and join where both agree again."""
        self.text += more
        if not more:
            return
        at = len(self.ids) - OVERLAP
        while at > self.first and not self._between(self.spans, at):
            at -= 1
        if at > self.first:
            begin = self.spans[at - 1][1]
            ids, spans = self._encoded(begin)
            places = {self.spans[i - 1][1]: i for i in range(at + 1, len(self.ids) - 1)}
            for new in range(1, len(ids) - 1):
                old = places.get(spans[new - 1][1])
                same = old is not None and self.ids[old : old + 2] == ids[new : new + 2]
                if old is not None and same and self._between(self.spans, old) and self._between(spans, new):
                    self.ids[old:], self.spans[old:] = ids[new:], spans[new:]
                    return
        ids, spans = self._encoded(self.begin)
        self.ids[self.first :], self.spans[self.first :] = ids, spans

    def _encoded(self, begin: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of the text from one of its characters on."""
        ids, spans = self.drafter.encode(self.text[begin - self.begin :])
        return ids, [(first + begin, last + begin) for first, last in spans]

    def _between(self, spans: Sequence[tuple[int, int]], at: int) -> bool:
        """Return if a token begins where no character is divided."""
        return spans[at - 1][1] <= spans[at][0]


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens of the target, and for each the drafter's tokens (first, last + 1) that have its text."""

    tokens: list[int]
    sources: list[tuple[int, int]]


def continued(reading: Reading, drafted: Sequence[int]) -> Continuation:
    """Return drafted tokens as tokens that the target's tokenizer gives this text, after those of the target.

    Nothing, if the target's own last tokens would then be others, or if the tokens would not decode to just
    this text. The drafter's end of the text becomes the target's; other special tokens end what it wrote, and
    parts of a character at its end are left out.
    """
    target, drafter = reading.target, reading.drafter
    special = {*drafter.special, drafter.unknown}
    stop = next((i for i, token in enumerate(drafted) if token in special), len(drafted))
    last = drafter.last(reading.ids)
    before = drafter.decode(last)
    decoded = drafter.decode([*last, *drafted[:stop]])
    text, broken, _ = decoded[len(before) :].partition(BROKEN)
    ends = not broken and list(drafted[stop : stop + 1]) == [drafter.end]
    lost = reading.text[-1:].isspace() and not before[-1:].isspace()  # by tokenizers that keep no spaces
    spaced = int(lost and text.startswith(" "))
    own, parts = target.last(reading.tokens[: reading.done]), reading.tokens[reading.done :]
    tokens = _tokens_after(target, own, parts, text[spaced:]) if decoded.startswith(before) else None
    if tokens is None or not (tokens or ends):
        return Continuation([], [])
    whole = partial(target.decode, special=True)
    sources = _sources(
        _ends(drafter.decode, last, drafted[:stop], len(before) + spaced),
        _ends(whole, own + parts, tokens, len(whole(own))),
    )
    if ends and target.end is not None:
        tokens, sources = [*tokens, target.end], [*sources, (stop, stop + 1)]
    return Continuation(tokens, sources)


def _tokens_after(target: Codec, own: list[int], parts: list[int], text: str) -> list[int] | None:
    """Return the target's tokens for `text` after its own last ones; None if its own would change.

    `own` ends with a whole character; `parts` of one follow it.
    """
    before = target.decode(own, special=True)
    alone, whole = target.encode(before)[0], target.encode(before + text)[0]
    tokens = whole[len(alone) + len(parts) :]
    if not tokens:
        return [] if not (text or parts) else None
    unchanged = whole[: len(whole) - len(tokens)] == alone + parts
    right = unchanged and target.decode([*own, *parts, *tokens], special=True) == before + text
    return tokens if right else None


def _ends(
    decode: Callable[[list[int]], str], before: list[int], tokens: Sequence[int], base: int
) -> list[int]:
    """Return how many characters beyond the first `base` are complete after each token after `before`."""
    texts = (decode([*before, *tokens[: i + 1]]) for i in range(len(tokens)))
    return [max(0, len(complete(text)) - base) for text in texts]


def _sources(drafted: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Return for each token the drafted ones that have its characters; both are given by their ends."""
    sources, begin, final = [], 0, len(drafted) - 1
    for i, end in enumerate(tokens):
        end = next((e for e in tokens[i:] if e > begin), end)  # a part of a character goes with the whole
        first = next((j for j, e in enumerate(drafted) if e > begin), final)
        last = next((j for j, e in enumerate(drafted) if e >= end), final)
        sources.append((first, max(first, last) + 1))
        begin = tokens[i]
    return sources


def shared_tokens(
    target: Codec, drafter: Codec, sizes: tuple[int, int]
) -> tuple[list[tuple[int, int]], float]:
    """Return pairs of a token of the target and one of the drafter that stand for the same bytes.

    No token is in two pairs; the tokens that end a text are one. With them comes their share of the smaller
    vocabulary. `sizes` are those of the models' vocabularies.
    """
    one, other = target.spellings(sizes[0]), drafter.spellings(sizes[1])
    pairs = [(token, other[text]) for text, token in one.items() if text in other]
    share = len(pairs) / max(1, min(len(one), len(other)))
    ends = target.end, drafter.end
    if ends[0] is not None and ends[1] is not None and ends[0] < sizes[0] and ends[1] < sizes[1]:
        pairs.append((ends[0], ends[1]))
    return pairs, share

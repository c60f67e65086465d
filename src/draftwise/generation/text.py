"""Between tokens and text: detokenization, stop strings that span several tokens, texts of single ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary, ref

from ..core.sampling import Criterion
from ..errors import UserError
from ..inputs import whole

BROKEN = "�"  # what an unfinished UTF-8 character decodes to
TARGET = "target"

Stops = str | Iterable[str]  # one stop string, or several

SILENT, PLAIN = -2, -1
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's name of a byte-fallback token

# The end of a text that may still change is at most three replacement characters, of three tokens at most.
# The other tokens allow for what decoders do only at the beginning of a text, such as dropping its first
# space.
UNSURE = 3
CONTEXT = 12


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text and its source: `target`, or the drafter's name."""

    text: str
    source: str


class Kinds(dict[int, int]):
    """The kind of every token of a tokenizer: `SILENT` if it gives no text, its value if it is a fallback
    byte, else `PLAIN`.

    Consecutive fallback bytes are decoded together: into characters if all of them are valid UTF-8, else into
    one `BROKEN` each. So the text of such a run is final only after the next token.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = ref(tokenizer)

    @classmethod
    def of(cls, tokenizer: Any) -> Kinds:
        """Return the kinds of a tokenizer's tokens, computed once."""
        if tokenizer not in _KINDS:
            _KINDS[tokenizer] = cls(tokenizer)
        return _KINDS[tokenizer]

    def __missing__(self, token: int) -> int:
        tokenizer: Any = self.tokenizer()
        name = getattr(tokenizer, "convert_ids_to_tokens", str)
        if not decode(tokenizer, [token, token]):  # two of them, since the first space may be dropped
            self[token] = SILENT
        else:
            byte = BYTE.fullmatch(str(name(token)))
            self[token] = int(byte[1], 16) if byte else PLAIN
        return self[token]


_KINDS: WeakKeyDictionary[Any, Kinds] = WeakKeyDictionary()


class StopStrings:
    """Finds the token after which the text contains one of the stop strings (`Sampling.ends`)."""

    def __init__(self, tokenizer: Any, strings: Sequence[str], prompt_length: int) -> None:
        self.tokenizer, self.strings, self.kinds = tokenizer, tuple(strings), Kinds.of(tokenizer)
        # A visible token has at least one byte.
        self.context = CONTEXT + max(len(s.encode("utf-8", "surrogatepass")) for s in self.strings)
        self.start = prompt_length
        self.read, self.window, self.lead = prompt_length, list[int](), 0

    def __call__(self, tokens: Sequence[int], start: int) -> int | None:
        """Return how many of the tokens from `start` on to keep; None if no stop string is complete."""
        if start != self.read:  # the previous round was not committed
            self.read, self.window, self.lead = self.start, [], 0
        self._add(tokens[self.read : start])
        new = tokens[start:]
        # A stop string in the text stays there, unless the text may still change: one check of the whole
        # round is enough to rule it out.
        stays = all(self.kinds[t] < 0 for t in new) and not any(BROKEN in s for s in self.strings)
        if not stays or self._has_stop(new):
            for n in range(1, len(new) + 1):
                if self._has_stop(new[:n]):
                    return n
        self._add(new)
        return None

    def _has_stop(self, new: Sequence[int]) -> bool:
        text = decode(self.tokenizer, [*self.window, *new])[self.lead :]
        return any(s in text for s in self.strings)

    def _add(self, tokens: Sequence[int]) -> None:
        """Add tokens, and drop those that are too old to be part of a stop string."""
        self.read += len(tokens)
        self.window += [t for t in tokens if self.kinds[t] != SILENT]
        if len(self.window) > 3 * self.context:
            self.window = self._end(len(self.window) - self.context - CONTEXT)
            # The first tokens may decode differently without those before: they only serve as context.
            self.lead = len(decode(self.tokenizer, self.window[:UNSURE]))

    def _end(self, cut: int) -> list[int]:
        """Return the window from about `cut` on; a run of bytes that was invalid before stays so by one of
        its bytes."""
        window, kinds = self.window, self.kinds
        first = cut
        while first and kinds[window[first - 1]] >= 0 <= kinds[window[cut]]:
            first -= 1
        for _ in range(UNSURE):
            if first < cut and 0x80 <= kinds[window[cut]] < 0xC0:  # the middle of a character
                cut -= 1
        run = window[first:cut]
        if decode(self.tokenizer, run) == BROKEN * len(run):
            run = [t for t in run if kinds[t] >= 0x80][-1:]
        else:
            run = []
        return run + window[cut:]


def earliest(*ends: Criterion) -> Criterion:
    """Return a criterion that ends a text where the first of several does."""

    def end(tokens: Sequence[int], start: int) -> int | None:
        counts = [one(tokens, start) for one in ends]
        return min((count for count in counts if count is not None), default=None)

    return end


class Detokenizer:
    """Turns tokens into pieces of text as they arrive.

    Text is held back while it may still be an incomplete character, part of a run of fallback bytes, or the
    beginning of a stop string; nothing follows a stop string, which is left out unless `keeps_stop` is set.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop, self.kinds = tokenizer, tuple(stop), Kinds.of(tokenizer)
        self.window: list[int] = []  # the last tokens: decoding all each time takes quadratic time
        self.passed = 0  # characters of the window's text that have been passed on
        self.run: list[tuple[str, int]] = []  # source and number of the bytes at the window's end
        self.waiting: list[Piece] = []
        self.stopped = self.keeps_stop = False

    def push(self, tokens: Sequence[int], source: str) -> list[Piece]:
        """Return the pieces that are final after `tokens` from `source`."""
        out: list[Piece] = []
        visible = (t for t in tokens if self.kinds[t] != SILENT)
        for plain, group in groupby(visible, lambda t: self.kinds[t] == PLAIN):
            if plain:
                out += self._end_run()
            new = list(group)
            self.window += new
            if plain:
                out += self._read(source)
            else:
                self.run.append((source, len(new)))
        return out

    def flush(self, source: str = TARGET) -> list[Piece]:
        """Return the text still held back when the text ends."""
        out = self._end_run()
        text = decode(self.tokenizer, self.window)
        out += self._take([Piece(text[self.passed :], source)])
        self.passed = len(text)
        if not self.stopped:
            out += self.waiting
        self.waiting = []
        return out

    def _read(self, source: str) -> list[Piece]:
        """Return the part of the window's text that is final."""
        text = decode(self.tokenizer, self.window)
        open_marks = min(len(text) - len(text.rstrip(BROKEN)), UNSURE)
        new = text[self.passed : len(text) - open_marks]
        self.passed += len(new)
        self._shorten(len(text) - self.passed)
        return self._take([Piece(new, source)])

    def _end_run(self) -> list[Piece]:
        """Return the text of a run of bytes, divided among the sources by the number of bytes each wrote."""
        if not self.run:
            return []
        text = decode(self.tokenizer, self.window)
        new, self.passed = text[self.passed :], len(text)
        total, before = sum(n for _, n in self.run), 0
        pieces: list[Piece] = []
        for source, n in self.run:
            begin, end = (len(new) * count // total for count in (before, before + n))
            pieces.append(Piece(new[begin:end], source))
            before += n
        self.run = []
        return self._take(pieces)

    def _shorten(self, unread: int) -> None:
        """Drop all tokens but the last ones, and never split a run of bytes."""
        cut = len(self.window) - CONTEXT
        if cut < CONTEXT:
            return
        while self.kinds[self.window[cut - 1]] >= 0 <= self.kinds[self.window[cut]]:
            cut += 1
        passed = len(decode(self.tokenizer, self.window[cut:])) - unread
        if passed > 0:
            self.window, self.passed = self.window[cut:], passed

    def _take(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return what can be passed on of the text held back and of these pieces, which came together."""
        new = [piece for piece in pieces if piece.text]
        if self.stopped or not new:
            return []
        self.waiting += new
        text = "".join(piece.text for piece in self.waiting)
        at = [(i, i + len(s)) for s in self.stop if (i := text.find(s)) >= 0]
        if at:
            self.stopped = True
            out = self._release(min(at)[self.keeps_stop])
            self.waiting = []
            return out
        return self._release(len(text) - self._unsure_length(text))

    def _unsure_length(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is the beginning of a stop string."""
        most = min(max((len(s) for s in self.stop), default=1) - 1, len(text))
        return next(
            (n for n in range(most, 0, -1) if any(s.startswith(text[-n:]) for s in self.stop if n < len(s))),
            0,
        )

    def _release(self, room: int) -> list[Piece]:
        """Return the first `room` characters of the text held back."""
        out: list[Piece] = []
        while self.waiting and room:
            text, source = self.waiting[0].text, self.waiting[0].source
            out.append(Piece(text[:room], source))
            self.waiting[:1] = [Piece(text[room:], source)] if len(text) > room else []
            room -= len(out[-1].text)
        return out


def stop_strings(stop: Stops) -> tuple[str, ...]:
    """Return stop strings as a tuple, one or several; a `UserError` names what is no text, or empty."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else (stop,)
    for s in strings:
        if not isinstance(s, str):
            raise UserError(f"the stop string {s!r} is not text: give text, or a list of texts")
        if not s:
            raise UserError("a stop string is empty: leave it out")
        whole(s, "a stop string")
    return strings


def decode(tokenizer: Any, tokens: Sequence[int], *, special: bool = False) -> str:
    """Return the text of some tokens, without `special` ones and with its spaces unchanged."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    return text


# -- single tokens ----------------------------------------------------------------------------------------


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

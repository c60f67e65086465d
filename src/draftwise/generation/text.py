"""Between tokens and text: pieces as they come, and stop strings that begin and end in different tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary, ref

from ..errors import UserError
from ..inputs import whole

BROKEN = "�"  # what an unfinished UTF-8 character decodes to
TARGET = "target"

Stops = str | Sequence[str]  # one stop string, or several

SILENT, PLAIN = -2, -1
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's name of a byte that no piece covers

# The end of a text that may still change is three marks, of three tokens at most; the others are for what
# decoders do at the beginning of a text only, such as dropping its first space.
UNSURE = 3
CONTEXT = 12


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text and who guessed it: `target`, or the drafter's name."""

    text: str
    source: str


class Kinds(dict[int, int]):
    """What every token is to a tokenizer: `SILENT` where it gives no text, its value where it is a fallback
    byte, else `PLAIN`.

    Fallback bytes in a row are decoded together: into characters where all of them are valid UTF-8, else into
    one `BROKEN` each. So nothing of such a run is certain before another token has ended it.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = ref(tokenizer)

    @classmethod
    def of(cls, tokenizer: Any) -> Kinds:
        """Those of a tokenizer, which are found out once."""
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
    """Says after which token the text holds one of the stop strings (`Sampling.ends`)."""

    def __init__(self, tokenizer: Any, strings: Sequence[str], prompt_length: int) -> None:
        self.tokenizer, self.strings, self.kinds = tokenizer, tuple(strings), Kinds.of(tokenizer)
        # A visible token has at least one byte.
        self.context = CONTEXT + max(len(s.encode("utf-8", "surrogatepass")) for s in self.strings)
        self.start = prompt_length
        self.read, self.window, self.lead = prompt_length, list[int](), 0

    def __call__(self, tokens: Sequence[int], start: int) -> int | None:
        """How many of the tokens from `start` on to keep, or None if no stop string is complete."""
        if start != self.read:  # the round before was not kept
            self.read, self.window, self.lead = self.start, [], 0
        self._add(tokens[self.read : start])
        new = tokens[start:]
        # What is once in the text stays there, unless it may still change.
        stays = all(self.kinds[t] < 0 for t in new) and not any(BROKEN in s for s in self.strings)
        if not stays or self._found(new):
            for n in range(1, len(new) + 1):
                if self._found(new[:n]):
                    return n
        self._add(new)
        return None

    def _found(self, new: Sequence[int]) -> bool:
        text = decode(self.tokenizer, [*self.window, *new])[self.lead :]
        return any(s in text for s in self.strings)

    def _add(self, tokens: Sequence[int]) -> None:
        """Read on, and forget what no stop string can reach any more."""
        self.read += len(tokens)
        self.window += [t for t in tokens if self.kinds[t] != SILENT]
        if len(self.window) > 3 * self.context:
            self.window = self._end(len(self.window) - self.context - CONTEXT)
            # The first tokens may read differently there: they only lead to the others.
            self.lead = len(decode(self.tokenizer, self.window[:UNSURE]))

    def _end(self, cut: int) -> list[int]:
        """The window from about `cut` on; a run of bytes that was broken before stays so by one of them."""
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


class Detokenizer:
    """Turns tokens into pieces as they come.

    Text is held back while it may still be half a character, part of a run of fallback bytes, or the
    beginning of a stop string; after a stop string nothing more comes.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop, self.kinds = tokenizer, tuple(stop), Kinds.of(tokenizer)
        self.window: list[int] = []  # the last tokens: decoding all of them each time would not be linear
        self.taken = 0  # characters of the window's text that have left it
        self.run: list[tuple[str, int]] = []  # who wrote how many of the bytes at the window's end
        self.waiting: list[Piece] = []
        self.stopped = False

    def push(self, tokens: Sequence[int], source: str) -> list[Piece]:
        """The pieces that are certain now that `tokens` have come from `source`."""
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
        """What was still held back when the text ended."""
        out = self._end_run()
        text = decode(self.tokenizer, self.window)
        out += self._take(text[self.taken :], source)
        self.taken = len(text)
        if not self.stopped:
            out += self.waiting
        self.waiting = []
        return out

    def _read(self, source: str) -> list[Piece]:
        """What the window's text says for certain."""
        text = decode(self.tokenizer, self.window)
        open_marks = min(len(text) - len(text.rstrip(BROKEN)), UNSURE)
        new = text[self.taken : len(text) - open_marks]
        self.taken += len(new)
        self._shorten(len(text) - self.taken)
        return self._take(new, source)

    def _end_run(self) -> list[Piece]:
        """The text of a run of bytes, shared out by how many of the bytes each source wrote."""
        if not self.run:
            return []
        text = decode(self.tokenizer, self.window)
        new, self.taken = text[self.taken :], len(text)
        total, before = sum(n for _, n in self.run), 0
        out: list[Piece] = []
        for source, n in self.run:
            begin, end = (len(new) * count // total for count in (before, before + n))
            out += self._take(new[begin:end], source)
            before += n
        self.run = []
        return out

    def _shorten(self, held: int) -> None:
        """Forget all tokens but the last, and never the beginning of a run of bytes alone."""
        cut = len(self.window) - CONTEXT
        if cut < CONTEXT:
            return
        while self.kinds[self.window[cut - 1]] >= 0 <= self.kinds[self.window[cut]]:
            cut += 1
        taken = len(decode(self.tokenizer, self.window[cut:])) - held
        if taken > 0:
            self.window, self.taken = self.window[cut:], taken

    def _take(self, new: str, source: str) -> list[Piece]:
        if self.stopped or not new:
            return []
        self.waiting.append(Piece(new, source))
        text = "".join(piece.text for piece in self.waiting)
        at = [i for s in self.stop if (i := text.find(s)) >= 0]
        if at:
            self.stopped = True
            out = self._release(min(at))
            self.waiting = []
            return out
        return self._release(len(text) - self._held(text))

    def _held(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        most = min(max((len(s) for s in self.stop), default=1) - 1, len(text))
        return next(
            (n for n in range(most, 0, -1) if any(s.startswith(text[-n:]) for s in self.stop if n < len(s))),
            0,
        )

    def _release(self, room: int) -> list[Piece]:
        """The first `room` characters of what waits."""
        out: list[Piece] = []
        while self.waiting and room:
            text, source = self.waiting[0].text, self.waiting[0].source
            out.append(Piece(text[:room], source))
            self.waiting[:1] = [Piece(text[room:], source)] if len(text) > room else []
            room -= len(out[-1].text)
        return out


def stop_strings(stop: Stops) -> tuple[str, ...]:
    """The stop strings as a tuple; one alone may be given as it is.

    Raises:
        UserError: one of them is empty, or no text.
    """
    strings = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else (stop,)
    for s in strings:
        if not isinstance(s, str):
            raise UserError(f"the stop string {s!r} is no text: give a text, or a list of them")
        if not s:
            raise UserError("a stop string is empty: leave it out")
        whole(s, "a stop string")
    return strings


def decode(tokenizer: Any, tokens: Sequence[int], *, special: bool = False) -> str:
    """The text of some tokens, without `special` ones and with its spaces as they are."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    return text

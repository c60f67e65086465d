"""A text of the target as tokens of the drafter, kept up to date as the text grows."""

from __future__ import annotations

from collections.abc import Sequence

from .codec import BROKEN, Codec

OVERLAP = 16  # tokens before the end of a text that are encoded again when it grows
PARTS = 3  # tokens at the end of a text that may be parts of one character


class Reading:
    """What the drafter reads in place of the target's tokens.

    Text is decoded and encoded piece by piece, the last tokens once more with what follows them, so that
    they become what the whole text would be encoded to. A special token of the target becomes the drafter's
    of the same name, the end of the text its own; any other that stands between texts becomes a line break.

    Attributes:
        ids: The drafter's tokens.
        spans: The characters (first, last + 1) of each, counted from the beginning of the text.
        done: How many of the target's tokens these stand for: all but the parts of a character at the end.
        length: Characters of the text.
    """

    def __init__(self, ours: Codec, theirs: Codec) -> None:
        self.ours, self.theirs = ours, theirs
        self.named = {name: i for i, name in theirs.special.items()}
        self.tokens: list[int] = []
        self.done = self.mark = 0  # the last tokens are decoded together with those from `mark` on
        self._restart()

    def read(self, tokens: Sequence[int]) -> None:
        """Follow the text to the end of `tokens`; start again if those read before were others."""
        if len(tokens) < self.done or list(tokens[: self.done]) != self.tokens[: self.done]:
            self._restart()
        self.tokens = list(tokens)
        while self.done < len(tokens):
            special = next((i for i in range(self.done, len(tokens)) if tokens[i] in self.ours.special), None)
            before = self.done
            self._text(len(tokens) if special is None else special, ends=special is not None)
            if special is not None:
                self._special(tokens[special])
                self.mark = self.done = special + 1
            elif self.done == before:
                return  # parts of a character

    def _restart(self) -> None:
        self.ids = list(self.theirs.prefix)
        self.spans = [(0, 0)] * len(self.ids)
        self.done = self.mark = 0
        self.first = len(self.ids)  # the drafter's token with which `text` begins, after the last special one
        self.text, self.begin = "", 0

    @property
    def length(self) -> int:
        """Characters of the text."""
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
        return self.ours.decode(self.tokens[self.mark : end])

    def _special(self, token: int) -> None:
        name = self.ours.special[token]
        other = self.theirs.end if token == self.ours.end else self.named.get(name)
        begun = not self.text and self.ids == self.theirs.prefix and other in self.ids
        if other is not None and not begun:
            self.begin += len(self.text)
            self.ids.append(other)
            self.spans.append((self.begin, self.begin))
            self.first, self.text = len(self.ids), ""
        elif other is None and token not in self.ours.silent and self.text[-1:].strip():
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
        """The tokens of the text from one of its characters on."""
        ids, spans = self.theirs.encode(self.text[begin - self.begin :])
        return ids, [(first + begin, last + begin) for first, last in spans]

    def _between(self, spans: Sequence[tuple[int, int]], at: int) -> bool:
        """Whether a token begins where no character is divided."""
        return spans[at - 1][1] <= spans[at][0]

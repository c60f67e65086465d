"""Where each n-gram of a text occurred last, and what followed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

BITS = 32  # per token of an n-gram key; ids are shifted by one, so that 0 is "before the text"
LOOKED = 32  # tokens of a match that are counted at most


class Ngrams:
    """The tokens of one request and the position where each of their n-grams last ended.

    `match` is the longest n-gram at the end that occurred before, `length` how far both agree. Each token
    costs O(`longest`).
    """

    __slots__ = ("_hits", "_key", "_mask", "_orders", "_source", "_tries", "length", "match", "tokens")

    def __init__(self, shortest: int, longest: int) -> None:
        self.tokens: list[int] = []
        self.match = self.length = 0
        self._source = 0  # the position after the matched n-gram's earlier occurrence
        self._key = 0
        self._mask = (1 << BITS * longest) - 1
        self._orders: list[tuple[int, int, dict[int, int]]] = [
            (n, (1 << BITS * n) - 1, {}) for n in range(longest, shortest - 1, -1)
        ]
        self._hits = [1] * (longest + 1)
        self._tries = [2] * (longest + 1)

    def extend(self, new: Sequence[int]) -> None:
        """Append tokens to the text."""
        tokens, key, match, source = self.tokens, self._key, self.match, self._source
        for token in new:
            if match:
                self._tries[match] += 1
                self._hits[match] += tokens[source] == token
            tokens.append(token)
            after = len(tokens)
            key = (key << BITS | token + 1) & self._mask
            match = 0
            for n, mask, seen in self._orders:
                gram = key & mask
                if not match and gram in seen:
                    match, source = n, seen[gram]
                seen[gram] = after
        self._key, self.match, self._source = key, match, source
        self.length = self._common(source, tokens, match) if match == len(self._hits) - 1 else match

    def matched(self, new: Sequence[int]) -> int:
        """The `length` after these tokens as well, by the n-grams before them."""
        if not new:
            return self.length
        key = self._key
        for token in new:
            key = key << BITS | token + 1
        for n, mask, seen in self._orders:
            if (source := seen.get(key & mask)) is not None:
                tail = [*self.tokens[-LOOKED:], *new]
                return self._common(source, tail, n) if n == len(self._hits) - 1 else n
        return 0

    def continuation(self, most: int, written: Sequence[int] = ()) -> tuple[list[int], list[float]]:
        """The next `most` tokens, as if these had been written before; none if nothing matches.

        With each token comes the share of matches of its length that were right so far. Each copied token
        lengthens the match, up to the longest n-gram that is scored.
        """
        if not written:
            return self._following(most)
        with self._extended(written):
            return self._following(most)

    def _following(self, most: int) -> tuple[list[int], list[float]]:
        if not self.match:
            return [], []
        tokens, source, hits, tries = self.tokens, self._source, self._hits, self._tries
        period, longest = len(tokens) - source, len(hits) - 1
        lengths = [min(n, longest) for n in range(self.match, self.match + most)]
        right = [hits[n] / tries[n] for n in lengths]
        return [tokens[source + k % period] for k in range(most)], right

    def _common(self, source: int, end: Sequence[int], known: int) -> int:
        """How many tokens before `source` are those at the `end`, up to `LOOKED`; so many are known."""
        tokens, n, most = self.tokens, known, min(source, LOOKED)
        while n < most and tokens[source - n - 1] == end[-n - 1]:
            n += 1
        return n

    @contextmanager
    def _extended(self, new: Sequence[int]) -> Iterator[None]:
        """The text with these tokens, which are taken back afterwards."""
        length, key, match, source = len(self.tokens), self._key, self.match, self._source
        common = self.length
        hits, tries, before = list(self._hits), list(self._tries), []
        for token in new:
            key = (key << BITS | token + 1) & self._mask
            before += [(seen, key & mask, seen.get(key & mask)) for _, mask, seen in self._orders]
        key = self._key
        self.extend(new)
        try:
            yield
        finally:
            del self.tokens[length:]
            self._key, self.match, self._source, self._hits, self._tries = key, match, source, hits, tries
            self.length = common
            for seen, gram, place in before:
                if place is None:
                    seen.pop(gram, None)
                else:
                    seen[gram] = place

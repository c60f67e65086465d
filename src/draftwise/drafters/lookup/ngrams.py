"""Where each n-gram of a text occurred last, and what followed it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from copy import copy

BITS = 32  # per token of an n-gram key; ids are shifted by one, so that 0 is "before the text"
LOOKED = 32  # tokens of a match that are counted at most


class Ngrams:
    """The tokens of one request and the position where each of their n-grams last ended.

    `match` is the longest n-gram at the end that occurred before, `length` how far both agree. Each token
    costs O(`longest`).
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.tokens: list[int] = []
        self.longest = longest
        self.match = self.length = 0
        self._source = 0  # the position after the matched n-gram's earlier occurrence
        self._key = 0
        self._orders: list[tuple[int, int, MutableMapping[int, int]]] = [
            (n, (1 << BITS * n) - 1, {}) for n in range(longest, shortest - 1, -1)
        ]
        self._matches = [1] * (longest + 1)  # by n: how often the token after a match was right, of how many
        self._tries = [2] * (longest + 1)

    def extend(self, new: Sequence[int]) -> None:
        tokens, mask_of_all = self.tokens, self._orders[0][1]
        for token in new:
            if self.match:
                self._tries[self.match] += 1
                self._matches[self.match] += tokens[self._source] == token
            tokens.append(token)
            self._key = (self._key << BITS | token + 1) & mask_of_all
            self.match = 0
            for n, mask, ends in self._orders:
                gram = self._key & mask
                if not self.match and gram in ends:
                    self.match, self._source = n, ends[gram]
                ends[gram] = len(tokens)
        self.length = self._common(self._source, tokens, self.match)

    def matched(self, new: Sequence[int]) -> int:
        """Return the `length` after these tokens as well, by the n-grams before them."""
        if not new:
            return self.length
        key = self._key
        for token in new:
            key = key << BITS | token + 1
        for n, mask, ends in self._orders:
            if (source := ends.get(key & mask)) is not None:
                return self._common(source, [*self.tokens[-LOOKED:], *new], n)
        return 0

    def continuation(self, most: int, written: Sequence[int] = ()) -> tuple[list[int], list[float]]:
        """Return the next `most` tokens, as if these had been written before; none if nothing matches.

        With each token comes the share of matches of its length that were right so far. Each copied token
        lengthens the match, up to the longest n-gram that is scored.
        """
        if written:
            text = copy(self)
            text.tokens, text._matches, text._tries = [*self.tokens], [*self._matches], [*self._tries]
            text._orders = [(n, mask, ChainMap({}, ends)) for n, mask, ends in self._orders]
            text.extend(written)
            return text.continuation(most)
        if not self.match:
            return [], []
        tokens, source = self.tokens, self._source
        lengths = [min(n, self.longest) for n in range(self.match, self.match + most)]
        shares = [self._matches[n] / self._tries[n] for n in lengths]
        return [tokens[source + k % (len(tokens) - source)] for k in range(most)], shares

    def _common(self, source: int, end: Sequence[int], match: int) -> int:
        """Return how far a match goes back, up to `LOOKED` tokens; one shorter than `longest` is complete."""
        most = min(source, LOOKED) if match == self.longest else 0
        while match < most and self.tokens[source - match - 1] == end[-match - 1]:
            match += 1
        return match

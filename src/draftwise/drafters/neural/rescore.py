"""A trigram language model of each text, which rescores the predictions of independent heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

LEAN = 0.5  # weight of the shorter context in counts


@dataclass(slots=True)
class TextGrams:
    """Trigrams of one text, interpolated with the shorter contexts (Jelinek and Mercer)."""

    vocab_size: int
    ones: Counter[int] = field(default_factory=Counter)
    twos: dict[int, Counter[int]] = field(default_factory=dict)
    threes: dict[tuple[int, int], Counter[int]] = field(default_factory=dict)
    tail: tuple[int, ...] = ()

    def read(self, new: Sequence[int]) -> None:
        """Add tokens to the text."""
        for token in new:
            self.ones[token] += 1
            if self.tail:
                self.twos.setdefault(self.tail[-1], Counter())[token] += 1
            if len(self.tail) == 2:
                self.threes.setdefault((self.tail[0], self.tail[1]), Counter())[token] += 1
            self.tail = (*self.tail, token)[-2:]

    def logs(self, path: Sequence[int], candidates: Sequence[int]) -> list[float]:
        """Log-probabilities of each candidate after the text and a drafted path."""
        last = (*self.tail, *path)[-2:]
        two = self.twos.get(last[-1], Counter()) if last else Counter[int]()
        three = self.threes.get((last[0], last[1]), Counter()) if len(last) == 2 else Counter[int]()
        totals = [counts.total() for counts in (self.ones, two, three)]
        found = []
        for token in candidates:
            p = 1.0 / self.vocab_size
            for counts, total in zip((self.ones, two, three), totals, strict=True):
                p = (counts[token] + LEAN * p) / (total + LEAN)
            found.append(log(p))
        return found

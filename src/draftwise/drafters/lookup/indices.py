"""The indices of lookups: in C++ where this machine has a compiler, else in Python; both do the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from . import automaton as python_automaton
from . import ngrams as python_ngrams
from .automaton import Step, Walks
from .native.library import library


class Suffixes(Protocol):
    """A counting suffix automaton (see `Automaton`)."""

    @property
    def depth(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def match(self) -> int: ...
    @property
    def deepest(self) -> int: ...
    @property
    def held(self) -> int: ...
    def begin(self) -> None: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    def steps(self, state: int, held: int, tokens: Sequence[int]) -> tuple[int, int]: ...
    def matched(self, state: int, held: int) -> int: ...
    def counts(self, state: int) -> list[int]: ...
    def likeliest(self, state: int, held: int, length: int, walks: Walks) -> tuple[float, list[Step]]: ...


class Ngrams(Protocol):
    """An index of n-grams (see `ngrams.Ngrams`)."""

    @property
    def length(self) -> int: ...
    def extend(self, new: Sequence[int]) -> None: ...
    def matched(self, new: Sequence[int]) -> int: ...
    def continuation(self, most: int, written: Sequence[int] = ()) -> tuple[list[int], list[float]]: ...


def automaton(depth: int) -> Suffixes:
    """An empty automaton that counts contexts of up to `depth` tokens."""
    return cast(Suffixes, (library() or python_automaton).Automaton(depth))


def ngrams(shortest: int, longest: int) -> Ngrams:
    """An empty index of n-grams of these lengths."""
    return cast(Ngrams, (library() or python_ngrams).Ngrams(shortest, longest))

"""A counting suffix automaton: which token followed which context, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

NONE = -1
ROOT = 0
Step = tuple[int, int, int, int]
"""A token, how often it followed its context, how often any token did, and that context (a state)."""


class Walks(NamedTuple):
    """Which walks compete: those from the first `tries` contexts.

    From a context of m tokens a walk has at most `factor` * m + `offset` steps, and ends before its joint
    probability falls below `least`.
    """

    tries: int
    factor: float
    offset: float
    least: float


class Automaton:
    """Every substring of the texts appended so far, with counts for contexts of up to `depth` tokens.

    A state is a set of substrings that end at the same positions; its suffix link leads to the longest suffix
    that ends at more positions (Blumer et al. 1985). Counts and the most frequent continuation (the latest
    among equals) are exact after each token. Adding a token costs amortised O(1) for the automaton, and for
    the counts one step per state on the suffix path of the last `depth` tokens: about five in prose, at most
    `depth` in repetitive text. A place in a text is a pair: a state, and the `span` of last tokens that the
    state represents. `deepest` and `span` are the place at the end of the current text.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.next: list[dict[int, int]] = [{}]
        self.link = [NONE]
        self.length = [0]  # of the longest substring of each state
        self.count = [0]  # how often the state's substrings occur
        self.follows = [0]  # how often a token followed them: less than `count` if a text ended there
        self.best = [NONE]  # the token that followed most often
        self.size = 0
        self.begin()

    def begin(self) -> None:
        """Start a new text: the next token has no context."""
        self.last = self.deepest = ROOT
        self.span = 0

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._append(token)
            self._score(token)

    @property
    def match(self) -> int:
        """The length of the longest suffix of the current text that occurred before."""
        return self.length[self.link[self.last]] if self.last else 0

    def best_walk(self, state: int, span: int, length: int, walks: Walks) -> tuple[float, list[Step]]:
        """Return the score and steps of the best walk of at most `length` steps; of equals, the first."""
        tries, factor, offset, least = walks
        scored = (
            self.walk(context, min(length, int(factor * match + offset)), least)
            for context, match in islice(self.contexts(state, span), tries)
        )
        return max(scored, key=itemgetter(0), default=(0.0, []))

    def matched(self, state: int, span: int) -> int:
        """Return the length of the longest suffix that was followed by a token; 0 if none was."""
        return next(self.contexts(state, span), (ROOT, 0))[1]

    def counts(self, state: int) -> list[int]:
        """Return how often each token followed a context, in the order of their first occurrence."""
        return [self.count[after] for after in self.next[state].values()]

    def contexts(self, state: int, span: int) -> Iterator[tuple[int, int]]:
        """Yield the suffixes that were followed by a token, as states and lengths, longest first.

        Of suffixes with equal counts only the longest is given.
        """
        while state:
            if self.follows[state]:
                yield state, span
            state = self.link[state]
            span = self.length[state]

    def walk(self, state: int, most: int, least: float) -> tuple[float, list[Step]]:
        """Return the score and the at most `most` steps along the most frequent continuations.

        The score is the sum of the joint probabilities: the expected number of accepted tokens.
        """
        link, length, count, follows = self.link, self.length, self.count, self.follows
        path: list[Step] = []
        joint, score = 1.0, 0.0
        while len(path) < most:
            while state and not follows[state]:  # the text ends here: continue with a shorter context
                state = link[state]
            if not state:
                break
            token = self.best[state]
            after = self.next[state][token]
            joint *= count[after] / follows[state]
            if joint < least:
                break
            score += joint
            path.append((token, count[after], follows[state], state))
            state = link[after] if length[link[after]] >= self.depth else after
        return score, path

    def steps(self, state: int, span: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Follow another text through this index, without adding it; return its place after `tokens`."""
        for token in tokens:
            while token not in self.next[state]:
                state = self.link[state]
                if state == NONE:
                    break
                span = self.length[state]
            if state == NONE:
                state, span = ROOT, 0
            else:
                span = min(span + 1, self.depth)
                state = self._shorten(self.next[state][token], span)
        return state, span

    def _append(self, token: int) -> None:
        nexts, link, last = self.next, self.link, self.last
        self.size += 1
        if token in nexts[last]:  # the text so far occurred before, followed by this token
            self.last = self._direct(last, token)
            return
        self.last = new = self._add({}, self.length[last] + 1)
        while last != NONE and token not in nexts[last]:
            nexts[last][token] = new
            last = link[last]
        link[new] = ROOT if last == NONE else self._direct(last, token)

    def _direct(self, before: int, token: int) -> int:
        """Return the state after this token, split from substrings that do not end where it does."""
        nexts, link, state = self.next, self.link, self.next[before][token]
        if self.length[state] == self.length[before] + 1:
            return state
        clone = self._add(nexts[state].copy(), self.length[before] + 1)
        link[clone], link[state] = link[state], clone
        for values in (self.count, self.follows, self.best):
            values[clone] = values[state]
        while before != NONE and nexts[before].get(token) == state:
            nexts[before][token] = clone
            before = link[before]
        return clone

    def _add(self, nexts: dict[int, int], length: int) -> int:
        self.next.append(nexts)
        for values, value in (
            (self.link, NONE),
            (self.length, length),
            (self.count, 0),
            (self.follows, 0),
            (self.best, NONE),
        ):
            values.append(value)
        return len(self.next) - 1

    def _score(self, token: int) -> None:
        """Count `token` after every context of up to `depth` tokens that precedes it."""
        count, follows, best = self.count, self.follows, self.best
        end = self.next[self.deepest][token]
        context, counted = self.deepest, NONE
        while context != NONE:
            after = self.next[context]
            state = after[token]
            if state != counted:
                count[state] += 1
                counted = state
            follows[context] += 1
            top = best[context]
            if top != token and (top == NONE or count[state] >= count[after[top]]):
                best[context] = token
            context = self.link[context]
        self.span = min(self.span + 1, self.depth)
        self.deepest = self._shorten(end, self.span)

    def _shorten(self, state: int, span: int) -> int:
        """Return the state of the last `span` tokens of a substring of `state`."""
        while state and self.length[self.link[state]] >= span:
            state = self.link[state]
        return state

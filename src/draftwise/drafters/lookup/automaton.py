"""A counting suffix automaton: which token followed which context, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

NOTHING = -1
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
    `depth` in repetitive text.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.next: list[dict[int, int]] = [{}]
        self.link = [NOTHING]
        self.length = [0]  # of the longest substring of each state
        self.count = [0]  # how often the state's substrings occur
        self.follows = [0]  # how often a token followed them: less than `count` if a text ended there
        self.best = [NOTHING]  # the token that followed most often
        self.size = 0
        self.last = self.deepest = ROOT
        self._held = 0

    def begin(self) -> None:
        """Start a new text: the next token has no context."""
        self.last = self.deepest = ROOT
        self._held = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the current text."""
        for token in tokens:
            self._append(token)
            self._score(token)

    @property
    def match(self) -> int:
        """The length of the longest suffix of the current text that occurred before."""
        return self.length[self.link[self.last]] if self.last else 0

    def likeliest(self, state: int, held: int, length: int, walks: Walks) -> tuple[float, list[Step]]:
        """The score of the best walk from the end of a text, and its steps; of equals, the first.

        A walk has at most `length` steps; `state` and `held` are as in `contexts`.
        """
        tries, factor, offset, least = walks
        found = []
        for context, match in islice(self.contexts(state, held), tries):
            found.append(self.walk(context, min(length, int(factor * match + offset)), least))
        return max(found, key=itemgetter(0), default=(0.0, []))

    def matched(self, state: int, held: int) -> int:
        """The length of the longest suffix of such a text that was followed by a token; 0 if none was."""
        return next(self.contexts(state, held), (ROOT, 0))[1]

    def counts(self, state: int) -> list[int]:
        """How often each token followed a context, in the order of their first occurrence."""
        return [self.count[after] for after in self.next[state].values()]

    def contexts(self, state: int, held: int) -> Iterator[tuple[int, int]]:
        """The suffixes of a text that were followed by a token, as states and lengths, longest first.

        `state` represents the last `held` tokens of the text; of suffixes with equal counts only the longest
        is given.
        """
        link, length, follows = self.link, self.length, self.follows
        while state:
            if follows[state]:
                yield state, held
            state = link[state]
            held = length[state]

    def walk(self, state: int, most: int, least: float) -> tuple[float, list[Step]]:
        """At most `most` steps along the most frequent continuations, and their score.

        The score is the sum of the joint probabilities: the expected number of accepted tokens. The walk ends
        before the joint probability falls below `least`.
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

    def step(self, state: int, held: int, token: int) -> tuple[int, int]:
        """Follow another text through this index, without adding it.

        `state` represents the last `held` tokens: the longest suffix of that text in this index. Returns the
        same pair after `token`; `held` is at most `depth`.
        """
        while token not in self.next[state]:
            state = self.link[state]
            if state == NOTHING:
                return ROOT, 0
            held = self.length[state]
        held = min(held + 1, self.depth)
        return self._shorten(self.next[state][token], held), held

    @property
    def held(self) -> int:
        """The last tokens of the current text that `deepest` represents."""
        return self._held

    def steps(self, state: int, held: int, tokens: Sequence[int]) -> tuple[int, int]:
        """`step` for each of these tokens."""
        for token in tokens:
            state, held = self.step(state, held, token)
        return state, held

    def _append(self, token: int) -> None:
        nexts, link, length = self.next, self.link, self.length
        last = self.last
        self.size += 1
        after = nexts[last].get(token)
        if after is not None:  # the text so far occurred before, followed by this token
            self.last = after if length[after] == length[last] + 1 else self._split(last, token, after)
            return
        new = self._state({}, length[last] + 1)
        self.last = new
        while last != NOTHING and token not in nexts[last]:
            nexts[last][token] = new
            last = link[last]
        if last == NOTHING:
            link[new] = ROOT
            return
        after = nexts[last][token]
        link[new] = after if length[after] == length[last] + 1 else self._split(last, token, after)

    def _split(self, before: int, token: int, state: int) -> int:
        """Split off the substrings of `state` that now end at a new position as a state of their own."""
        nexts, link, length = self.next, self.link, self.length
        clone = self._state(nexts[state].copy(), length[before] + 1)
        link[clone], link[state] = link[state], clone
        self.count[clone] = self.count[state]
        self.follows[clone] = self.follows[state]
        self.best[clone] = self.best[state]
        while before != NOTHING and nexts[before].get(token) == state:
            nexts[before][token] = clone
            before = link[before]
        return clone

    def _state(self, nexts: dict[int, int], length: int) -> int:
        self.next.append(nexts)
        self.link.append(NOTHING)
        self.length.append(length)
        self.count.append(0)
        self.follows.append(0)
        self.best.append(NOTHING)
        return len(self.next) - 1

    def _score(self, token: int) -> None:
        """Count `token` after every context of up to `depth` tokens that precedes it."""
        nexts, link, count, follows, best = self.next, self.link, self.count, self.follows, self.best
        context = deepest = self.deepest
        counted = NOTHING
        while context != NOTHING:
            after = nexts[context]
            state = after[token]
            if state != counted:
                count[state] += 1
                counted = state
            follows[context] += 1
            top = best[context]
            if top != token and (top == NOTHING or count[state] >= count[after[top]]):
                best[context] = token
            context = link[context]
        self._held = min(self._held + 1, self.depth)
        self.deepest = self._shorten(nexts[deepest][token], self._held)

    def _shorten(self, state: int, held: int) -> int:
        """The state of the last `held` tokens of a substring of `state`."""
        link, length = self.link, self.length
        while state and length[link[state]] >= held:
            state = link[state]
        return state

"""What the recorder of `auto` keeps of each request: drafts that are compared with its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.outcomes import Window


@dataclass(slots=True)
class Held:
    """A lookup's draft that is compared with the text as it is written.

    The draft began after `token` and had at most `asked` tokens, of which the first `right` are those of the
    text so far.
    """

    drafter: int
    context: int
    tokens: tuple[int, ...]
    asked: int
    token: int = -1
    right: int = 0

    def follow(self, text: Sequence[int]) -> Window | None:
        """Compare with the next tokens of the text; the result, once all of the draft is decided."""
        for token in text:
            if self.right == len(self.tokens):
                break
            if self.tokens[self.right] != token:
                return self.window(missed=True)
            self.right += 1
        if self.right == len(self.tokens):
            return self.window(missed=self.right < self.asked)  # it had no more tokens to offer
        return None

    def window(self, *, missed: bool) -> Window:
        """The result as far as it is known."""
        accepts = (1.0,) * self.right + ((0.0,) if missed else ())
        return Window(self.drafter, self.context, accepts, self.token)


@dataclass(slots=True)
class Notes:
    """The state of one text.

    Attributes:
        start: the length of the text when it was first seen, or after the last rounds left out.
        at: the length of the text when this round began.
        end: its length after the round.
        held: drafts of lookups that are not decided yet.
        rounds: where rounds began, the contexts of all drafters there, and the one that drafted (-1: none).
        probs: the target's probabilities of the tokens from `start` on (with sampling only).
        graded: by model, the tokens of the text up to which it is known.
        missed: by model, the tokens after these from rounds in which it did not draft, as far as they count.
        plain: by model, those of them from rounds without a draft: they count even once it drafts again.
        read: by model, the tokens of the text that it has read.
        skipped: results of drafts that were decided in rounds that were left out.
        left_out: how many rounds were left out before this one; each wrote one token.
    """

    start: int
    at: int = 0
    end: int = 0
    held: list[Held] = field(default_factory=list)
    rounds: list[tuple[int, Sequence[int], int]] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    graded: dict[int, int] = field(default_factory=dict)
    missed: dict[int, int] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    skipped: list[Window] = field(default_factory=list)
    left_out: int = 0

    def first_ungraded(self, i: int) -> int:
        """The first token on which this model was not tested."""
        return max(self.graded.get(i, 0), self.start)

    def add(self, models: Sequence[int], player: int, new: int, contexts: Sequence[int]) -> None:
        """A round of `new` tokens in which `player` drafted; the other models wait to be graded on it."""
        self.rounds.append((self.at, contexts, player))
        for i in models:
            if i != player:
                self.missed[i] = self.missed.get(i, 0) + new
                if player < 0:
                    self.plain[i] = self.plain.get(i, 0) + new
            elif plain := self.plain.get(i, 0):
                self.missed[i] = plain
            else:
                self.graded[i], self.missed[i] = self.end, 0

    def pending(self, i: int, tokens: int) -> int:
        """How many of the first `tokens` tokens this model has not read."""
        return tokens - self.read.get(i, 0)

    def unread(self, i: int) -> int:
        """How many tokens this model reads to be graded; some of them again, if it has drafted since."""
        return self.end - min(self.read.get(i, 0), self.first_ungraded(i))

    def skip(self, new: Sequence[int], start: int) -> None:
        """Tokens of rounds that were left out: drafts are compared with them, and no model is graded."""
        self.left_out = len(new)
        if not new:
            return
        self.skipped = self.settle(new, done=False)
        self.start, self.rounds, self.probs, self.missed = start, [], [], {}
        self.plain = {}

    def settle(self, new: Sequence[int], *, done: bool) -> list[Window]:
        """Compare the drafts that are held with new tokens; the results of those that are decided."""
        settled, still = self.skipped, list[Held]()
        self.skipped = []
        for held in self.held:
            window = held.follow(new)
            if window is None and done:
                window = held.window(missed=False)
            if window is None:
                still.append(held)
            else:
                settled.append(window)
        self.held = still
        return settled

"""Speculation is turned off where it does not pay, whatever the estimates are."""

from __future__ import annotations

from dataclasses import dataclass

from .prices import FADE, GROWTH, LONGEST_WAIT, WAIT, WINDOW

PAUSE = 2 * WINDOW  # rounds of the first pause


@dataclass(slots=True)
class Guard:
    """Holds what speculation took against what plain decoding would have taken for the same tokens.

    Estimates may be wrong; this compares seconds that were spent. When the last rounds with drafts in them
    took longer than plain passes for as many tokens, no draft is made for a while: 128 rounds, and four times
    as many each time that the next trial fails too, so that the loss stays a small part of all time. A draft
    that is expected to gain more than one token is made all the same: the text may have become a copy. Each
    that fails doubles that number, each that succeeds halves it, until the pause is over.
    """

    spent: float = 0.0
    plain: float = 0.0
    rounds: int = 0
    pause: float = 0.0
    penalty: int = PAUSE
    least: float = 1.0

    def allows(self, gain: float, rounds: float) -> bool:
        """Return whether a draft that is expected to gain so many tokens may be made in this round.

        `rounds` have passed since the last call: a part of one, where each request of a batch asks.
        """
        if self.pause <= 0.0:
            return True
        self.pause -= rounds
        return gain > self.least

    def add(self, seconds: float, plain: float) -> None:
        """One round with drafts: what it took, and what plain passes take for its tokens."""
        if self.pause > 0.0:
            self.least *= 2.0 if seconds > plain else 0.5
            self.pause *= self.least > 1 / 16
            return
        self.spent, self.plain = FADE * self.spent + seconds, FADE * self.plain + plain
        self.rounds += 1
        if self.rounds >= WINDOW and self.spent > self.plain > 0.0:
            self.pause, self.penalty = float(self.penalty), min(GROWTH * self.penalty, LONGEST_WAIT)
            self.spent, self.plain, self.rounds, self.least = 0.0, 0.0, 0, 1.0
        elif self.rounds > WAIT:
            self.penalty = PAUSE


@dataclass(slots=True)
class Skipping:
    """Leaves out rounds of a batch in which nothing pays: the more looks without a draft, the rarer the next.

    There are up to 7 rounds between two looks, or half as many as requests. A batch of another size class is
    looked at again.
    """

    at: int = -1
    idle: int = 0
    left: int = 0
    rest: int = 0  # rounds left out after the last look
    skipped: int = 0  # before it
    drafted: bool = True

    def rests(self, at: int, batch: int) -> bool:
        """Return whether this round is left out; if not, `drafted` is to say whether anything was."""
        if at != self.at:
            self.at, self.idle, self.left, self.rest, self.drafted = at, 0, 0, 0, True
        if self.left > 0:
            self.left -= 1
            return True
        self.idle = 0 if self.drafted else self.idle + 1
        self.skipped, self.rest = self.rest, min(self.idle // 4, 7, batch // 2)
        self.left, self.drafted = self.rest, False
        return False

"""Never slower than plain decoding for long: speculation is called off where it does not pay."""

from __future__ import annotations

from dataclasses import dataclass

TRIAL = 64.0  # rounds of speculation that are judged together
MEMORY = 1.0 - 1.0 / TRIAL
FIRST, GROWTH, LONGEST = 128, 4, 8192  # rounds of a pause


@dataclass(slots=True)
class Guard:
    """Holds what speculation took against what plain decoding would have taken for the same tokens.

    Estimates may be wrong; this compares seconds that were spent. When the last rounds with drafts in them
    took longer than plain passes for as many tokens, no draft is made for a while: 128 rounds, and four times
    as many each time that the next trial fails too, so that the loss stays a small part of all time.
    """

    spent: float = 0.0
    plain: float = 0.0
    rounds: float = 0.0
    pause: int = 0
    penalty: int = FIRST

    def stands(self) -> bool:
        """Whether drafts may be made in this round."""
        if self.pause > 0:
            self.pause -= 1
            return False
        return True

    def add(self, seconds: float, plain: float) -> None:
        """One round in a pass with drafts: what it took, and what plain passes take for its tokens."""
        self.spent = MEMORY * self.spent + seconds
        self.plain = MEMORY * self.plain + plain
        self.rounds += 1.0
        if self.rounds < TRIAL:
            return
        if self.spent > self.plain > 0.0:
            self.pause, self.penalty = self.penalty, min(GROWTH * self.penalty, LONGEST)
            self.spent = self.plain = self.rounds = 0.0
        elif self.rounds > 4 * TRIAL:
            self.penalty = FIRST

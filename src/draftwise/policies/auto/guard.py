"""Never slower than plain decoding for long: speculation is called off where it does not pay."""

from __future__ import annotations

from dataclasses import dataclass

TRIAL = 64.0  # rounds of speculation that are judged together
MEMORY = 1.0 - 1.0 / TRIAL
FIRST, GROWTH, LONGEST = 128, 4, 8192  # rounds of a pause
PROBE = 64  # rounds between two looks at plain decoding while the machine is not as it was
ODD = 1.25  # times faster or slower than usual
SURE = 1.0  # tokens that a draft must be expected to gain to be made in a pause, at first
SHOWN = 1 / 16  # of them: the pause is over
NEVER = float("inf")


@dataclass(slots=True)
class Guard:
    """Holds what speculation took against what plain decoding would have taken for the same tokens.

    Estimates may be wrong; this compares seconds that were spent. When the last rounds with drafts in them
    took longer than plain passes for as many tokens, no draft is made for a while: 128 rounds, and four times
    as many each time that the next trial fails too, so that the loss stays a small part of all time.

    In a batch every request reports its part of a pass: all these numbers are of passes.

    A pause after a trial that failed does not hold a draft that is expected to gain more than one token, such
    as the long matches of a text that is a copy. Each that fails doubles that number, each that succeeds
    halves it, until the pause is over.

    Under an unusual load the time of a plain pass is unknown until one has run: then one
    round in 64 is plain. A pause that began under another load is over.
    """

    spent: float = 0.0
    plain: float = 0.0
    rounds: float = 0.0
    pause: float = 0.0
    penalty: int = FIRST
    least: float = NEVER
    looked: int = 0
    load: float = 1.0

    def stands(self, load: float = 1.0, batch: int = 1, gain: float = 0.0) -> bool:
        """Whether this request may draft in this round, on a machine so many times slower than usual.

        `gain` is what the draft is expected to gain, in tokens.
        """
        if self.pause > 0.0 and not 1.0 / ODD < load / self.load < ODD:
            self.pause = 0.0
        if self.pause > 0.0:
            self.pause -= 1.0 / batch
            return gain > self.least
        self.load = load
        self.looked += 1
        if self.looked > PROBE * batch and not 1.0 / ODD < load < ODD:
            whole = 2 * batch - 2  # rounds that hold a pass of the batch, wherever it begins
            self.looked, self.pause, self.least = 0, whole / batch, NEVER
            return False
        return True

    def add(self, seconds: float, plain: float, batch: int = 1) -> None:
        """One round in a pass with drafts: what it took, and what plain passes take for its tokens."""
        part = 1.0 / batch
        if self.pause > 0.0:
            self.least *= 2.0 ** (part if seconds > plain else -part)
            if self.least <= SHOWN:
                self.pause = 0.0
            return
        keep = MEMORY if batch == 1 else MEMORY**part
        self.spent = keep * self.spent + seconds
        self.plain = keep * self.plain + plain
        self.rounds += part
        if self.rounds < TRIAL:
            return
        if self.spent > self.plain > 0.0:
            self.pause, self.penalty = float(self.penalty), min(GROWTH * self.penalty, LONGEST)
            self.spent, self.plain, self.rounds, self.least = 0.0, 0.0, 0.0, SURE
        elif self.rounds > 4 * TRIAL:
            self.penalty = FIRST

"""How far a drafter is right after one last token of the text and another."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...state.learned import adds, learned

CLASSES = 1024  # of tokens: id modulo this number
LEAN = 8.0  # tests that a class leans on its context with
MEMORY = 0.995


def _zeros() -> list[float]:
    return [0.0] * CLASSES


@dataclass(slots=True)
class LastToken:
    """First tokens of drafts accepted after each class of last tokens, against those that were expected.

    The next token is easier to guess after one token than after another. This is known before a draft, and is
    no part of its context: so the chances that the context gives are multiplied by what was accepted after
    such a token over what these chances said. Both fade by `MEMORY` with each test. Ids are hashed, so a
    vocabulary of any size takes the same space.
    """

    accepted: list[float] = field(default_factory=_zeros, metadata=learned(adds))
    expected: list[float] = field(default_factory=_zeros, metadata=learned(adds))

    def __call__(self, token: int) -> float:
        """By how much the chances of a draft after this token differ from those of its context."""
        k = token % CLASSES
        return (self.accepted[k] + LEAN) / (self.expected[k] + LEAN)

    def learn(self, token: int, expected: float, accept: float) -> None:
        """A draft after this token: the chance of its first token by context, and that it was accepted."""
        k = token % CLASSES
        self.accepted[k] = MEMORY * self.accepted[k] + accept
        self.expected[k] = MEMORY * self.expected[k] + expected

    def restart(self) -> None:
        """Let what other texts have shown weigh no more than what is expected of a class without tests."""
        for k, expected in enumerate(self.expected):
            share = min(1.0, LEAN / max(expected, LEAN))
            self.accepted[k] *= share
            self.expected[k] *= share

"""What a second is worth: tokens per second, kept apart for places with and without a match."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from ...state.learned import adds, learned

PLACES = 2  # without a match of any lookup, and with one


class Pacing(Protocol):
    """The recent rate of a batch, in tokens per second at the usual load."""

    def rate(self, matched: bool, alone: float) -> float:
        """The rate at places with or without a match; `alone` is the seconds of a plain round, or 0."""
        ...

    @property
    def writing(self) -> float:
        """The share of the time in which no drafter reads."""
        ...

    def add(self, matched: bool, tokens: int, seconds: float, *, requests: int = 1) -> None:
        """Learn one round of one request, and whether a lookup had a match where it began."""
        ...

    def read(self, seconds: float) -> None:
        """Learn how long a drafter has read, which is no part of a round."""
        ...


@dataclass(slots=True)
class Pace:
    """Tokens and seconds of recent rounds, by whether a lookup had a match where the round began.

    A draft saves the rounds that would have written its tokens, so its price is what tokens cost at this kind
    of place. Where a lookup copies a long passage, tokens are cheap and a second is worth many of them; after
    its end they are expensive again, which one rate for all places would notice only some rounds later. A
    rate leans on that of all places with a weight of `lean` plain rounds. What is known fades by `memory`
    with each round at a place of its kind; in a batch by `together` with as many rounds as it has requests.

    What a drafter has read lasts for the rest of a text, so that reading is no part of these rounds. Its
    share of all time fades more slowly (`long`).
    """

    _: KW_ONLY
    memory: float = 0.95
    together: float = 0.85
    long: float = 0.99
    lean: float = 3.0
    tokens: list[float] = field(default_factory=lambda: [0.0] * PLACES, metadata=learned(adds))
    seconds: list[float] = field(default_factory=lambda: [0.0] * PLACES, metadata=learned(adds))
    rounds: float = 0.0
    reading: float = 0.0

    @property
    def writing(self) -> float:
        """The share of the time in which no drafter reads; 1 before the first round."""
        return self.rounds / (self.rounds + self.reading) if self.rounds else 1.0

    def rate(self, matched: bool, alone: float) -> float:
        """The rate of this kind of place; 0 before the first round."""
        seconds = sum(self.seconds)
        if seconds <= 0.0:
            return 0.0
        whole, weight = sum(self.tokens) / seconds, self.lean * alone
        if not alone:
            return whole
        return (self.tokens[matched] + weight * whole) / (self.seconds[matched] + weight)

    def add(self, matched: bool, tokens: int, seconds: float, *, requests: int = 1) -> None:
        """Learn one round; in a batch each of the requests reports its part of it."""
        keep = self.memory if requests == 1 else self.together ** (1.0 / requests)
        self.tokens[matched] = keep * self.tokens[matched] + tokens
        self.seconds[matched] = keep * self.seconds[matched] + seconds
        keep = self.long if requests == 1 else self.long ** (1.0 / requests)
        self.rounds, self.reading = keep * self.rounds + seconds, keep * self.reading

    def read(self, seconds: float) -> None:
        """Learn how long a drafter has read."""
        self.reading += seconds

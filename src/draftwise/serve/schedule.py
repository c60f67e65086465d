"""Who is next: rows are shared out by client and not by order of arrival, and prompts are read in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..core.request import ENDLESS
from .generations import Generation

RowCounts: TypeAlias = Counter[tuple[str | int, ...]]
LEVELS = (1, 2, 3)  # an address, one of its users, one of the user's requests
OPEN = 2  # times the sequences of a batch: what may be open, those that are paused included
SLOWDOWN = 1.25  # times the seconds of a step that drafts chosen by clients may make of it
PLAIN_EVERY = 16  # steps of which one is without such drafts
MAX_DRAFT = 128  # tokens of such a draft


class Client(NamedTuple):
    """Who asks: an address, and the user that it names. An address gains nothing by naming several."""

    address: str = ""
    user: str = ""


NOBODY = Client()


def give_row(running: Sequence[Generation], waiting: Sequence[Generation], batch: int) -> Generation | None:
    """Return the sequence that gets one of `batch` rows next, for which another one may be paused; None if
    the rows stay as they are."""
    active = [sequence for sequence in running if not sequence.is_paused]
    candidates = [*(sequence for sequence in running if sequence.is_paused), *waiting]
    if not candidates:
        return None
    rows: RowCounts = Counter(sequence.owner[:level] for sequence in active for level in LEVELS)
    # Of the address that has the fewest rows, there of the user and of the request with the fewest; a paused
    # one first, and then the first to arrive.
    chosen = min(candidates, key=lambda sequence: (*_rows_of(sequence, rows), not sequence.is_paused))
    if len(active) >= batch:
        other = sequence_to_pause(active, chosen, rows)
        if other is None or not (chosen.is_paused or len(running) < OPEN * batch):
            return None
        other.is_paused = True
    chosen.is_paused = False
    return chosen


def sequence_to_pause(
    active: Sequence[Generation], candidate: Generation, rows: RowCounts
) -> Generation | None:
    """Return the sequence whose row `candidate` gets, the last one of the address with most, there of the
    user and of the request with most; None if sharing the rows that way would be no fairer."""

    def lead(sequence: Generation) -> int:
        """Return how many more rows it has, on the first level on which the two differ."""
        for level in LEVELS:
            if sequence.owner[:level] != candidate.owner[:level]:
                return rows[sequence.owner[:level]] - rows[candidate.owner[:level]]
        return 0

    richest = max(reversed(active), key=lambda sequence: (lead(sequence), *_rows_of(sequence, rows)))
    return richest if lead(richest) > 1 else None


def _rows_of(sequence: Generation, rows: RowCounts) -> list[int]:
    return [rows[sequence.owner[:level]] for level in LEVELS]


def next_prompt(sequences: Sequence[Generation], turn: int) -> Generation:
    """Return the sequence whose prompt is read next: by turns the one that joined first, so that none waits
    forever, and the one with the shortest prompt, so that long ones do not hold it up."""
    return sequences[0] if turn % 2 else min(sequences, key=lambda sequence: len(sequence.spec.prompt))


@dataclass(slots=True)
class DraftLimit:
    """The longest draft that a client may choose itself in a step that writes other requests' texts as well.

    It rises by a token with every step, and is halved by one that takes `SLOWDOWN` times as long as those
    without such drafts; one step in `PLAIN_EVERY` is without, so that their seconds stay known.
    """

    length: int = 1
    plain_seconds: float = 0.0
    steps: int = 0

    def apply(self, active: Sequence[Generation]) -> int | None:
        """Limit the drafts of a step with these sequences; return the limit, None if there is none."""
        chosen = [sequence for sequence in active if sequence.spec.arm is not None]
        limit = None
        if chosen and len({sequence.owner for sequence in active}) > 1:
            self.steps += 1
            limit = 0 if self.steps % PLAIN_EVERY == 1 else self.length
        for sequence in chosen:
            if sequence.request is not None:
                bound = ENDLESS if limit is None else limit
                sequence.request.max_draft = min(bound, sequence.spec.max_draft)
        return limit

    def add(self, limit: int | None, seconds: float) -> None:
        """Learn the seconds of a step with this limit."""
        if limit == 0:
            self.plain_seconds += (0.25 if self.plain_seconds else 1.0) * (seconds - self.plain_seconds)
            if self.steps % PLAIN_EVERY == 1:  # it may pay again
                self.length = max(1, self.length)
        elif limit is not None and seconds > SLOWDOWN * self.plain_seconds:
            self.length //= 2
        elif limit is not None:
            self.length = min(self.length + 1, MAX_DRAFT)

"""Who is next: rows are shared out by client and not by order of arrival, and prompts are read in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..core.request import ENDLESS
from .texts import Text

RowCounts: TypeAlias = Counter[tuple[str | int, ...]]
LEVELS = (1, 2, 3)  # an address, one of its users, one of the user's requests
OPEN = 2  # times the texts of a batch: what may be open, those that are paused included
LONGER = 1.25  # times the seconds of a step that drafts chosen by clients may make of it
LOOK = 16  # steps of which one is without such drafts
LONGEST = 128  # tokens of such a draft


class Client(NamedTuple):
    """Who asks: an address, and the user that it names. An address gains nothing by naming several."""

    address: str = ""
    user: str = ""


NOBODY = Client()


def give_row(running: Sequence[Text], waiting: Sequence[Text], batch: int) -> Text | None:
    """Return the text that gets one of `batch` rows next, for which another one may be paused; None if the
    rows stay as they are."""
    active = [text for text in running if not text.paused]
    candidates = [*(text for text in running if text.paused), *waiting]
    if not candidates:
        return None
    rows: RowCounts = Counter(text.owner[:level] for text in active for level in LEVELS)
    text = next_text(candidates, rows)
    if len(active) >= batch:
        other = text_to_pause(active, text, rows)
        if other is None or not (text.paused or len(running) < OPEN * batch):
            return None
        other.paused = True
    text.paused = False
    return text


def next_text(candidates: Sequence[Text], rows: RowCounts) -> Text:
    """Return the text of the address that has the fewest rows, there of the user with the fewest, there of
    the request with the fewest; a paused one first, and then the first to arrive."""
    return min(candidates, key=lambda text: (*_rows_of(text, rows), not text.paused))


def text_to_pause(active: Sequence[Text], candidate: Text, rows: RowCounts) -> Text | None:
    """Return the text whose row `candidate` gets, the last one of the address with most, there of the
    user and of the request with most; None if sharing the rows that way would be no fairer."""

    def lead(text: Text) -> int:
        """How many more rows it has, on the first level on which the two differ."""
        for level in LEVELS:
            if text.owner[:level] != candidate.owner[:level]:
                return rows[text.owner[:level]] - rows[candidate.owner[:level]]
        return 0

    richest = max(reversed(active), key=lambda text: (lead(text), *_rows_of(text, rows)))
    return richest if lead(richest) > 1 else None


def _rows_of(text: Text, rows: RowCounts) -> list[int]:
    return [rows[text.owner[:level]] for level in LEVELS]


def next_prompt(texts: Sequence[Text], turn: int) -> Text:
    """Return the text whose prompt is read next: by turns the one that joined first, so that none waits
    forever, and the one with the shortest prompt, so that long ones do not hold it up."""
    return texts[0] if turn % 2 else min(texts, key=lambda text: len(text.wish.prompt))


@dataclass(slots=True)
class DraftLimit:
    """The longest draft that a client may choose itself in a step that writes other requests' texts as well.

    It rises by a token with every step, and is halved by one that takes `LONGER` times as long as those
    without such drafts; one step in `LOOK` is without, so that their seconds stay known.
    """

    longest: int = 1
    plain: float = 0.0
    steps: int = 0

    def apply(self, active: Sequence[Text]) -> int | None:
        """Limit the drafts of a step with these texts; return the limit, None if there is none."""
        chosen = [text for text in active if text.wish.arm is not None]
        limit = None
        if chosen and len({text.owner for text in active}) > 1:
            self.steps += 1
            limit = 0 if self.steps % LOOK == 1 else self.longest
        for text in chosen:
            if text.request is not None:
                text.request.max_draft = min(ENDLESS if limit is None else limit, text.wish.longest)
        return limit

    def add(self, limit: int | None, seconds: float) -> None:
        """Learn what a step took with this limit."""
        if limit == 0:
            self.plain += (0.25 if self.plain else 1.0) * (seconds - self.plain)
            if self.steps % LOOK == 1:  # it may pay again
                self.longest = max(1, self.longest)
        elif limit is not None and seconds > LONGER * self.plain:
            self.longest //= 2
        elif limit is not None:
            self.longest = min(self.longest + 1, LONGEST)

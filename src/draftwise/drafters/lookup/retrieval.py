"""Retrieval (REST): drafts what follows the end of the text in a corpus, by vote."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ...core.drafts import Job, Signals
from ...core.request import Request
from ...errors import UserError
from ...registry import Within
from .datastore import DEPTH, Datastore
from .picked import LookupDrafter, tally


class RetrievalDrafter(LookupDrafter["TextEnd"]):
    """Looks the end of the text up in a datastore and drafts what followed there most often.

    The longest match of `min_match` to `max_match` tokens is used. At most `candidates` of its occurrences,
    evenly spaced in the order of their contexts, vote on each next token; those that lose a vote are dropped.
    The winner's probability is its share of the votes, with half a vote reserved for unseen tokens; the draft
    ends before the product of these probabilities falls below `min_prob`, or where most of the documents end.
    Votes replace the tree of the paper.

    Source: REST (arXiv 2311.08252).

    Raises:
        UserError: no readable datastore at `path`, or not 1 <= min_match <= max_match <= 32.
    """

    def __init__(
        self,
        path: str = "",
        *,
        min_match: Annotated[int, "shortest match in tokens"] = 2,
        max_match: Annotated[int, "longest match in tokens"] = 16,
        candidates: Annotated[int, "occurrences that vote", Within(1)] = 64,
        min_prob: Annotated[float, "least estimated probability of the whole draft", Within(0, 1)] = 0.2,
    ) -> None:
        if not path:
            raise UserError("retrieval needs a datastore: write retrieval:PATH")
        if not 1 <= min_match <= max_match <= DEPTH:
            raise UserError(
                f"retrieval?min_match={min_match}&max_match={max_match}: "
                f"give 1 <= min_match <= max_match <= {DEPTH}"
            )
        super().__init__()
        self.min_match, self.max_match = min_match, max_match
        self.candidates, self.min_prob = candidates, min_prob
        self.store = Datastore(path)

    def check(self, vocab_size: int, fingerprint: str) -> None:
        self.store.check(vocab_size, fingerprint)

    def hint(self, request: Request) -> float:
        """Return the length of the longest suffix of the text in the datastore; 0 = below `min_match`."""
        end = self.texts.get(request.id)
        return float(self._find(end)[0]) if end else 0.0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Record the end of the text; it is looked up when it is needed."""
        end = self.texts.setdefault(request.id, TextEnd(deque(maxlen=self.max_match)))
        end.tokens.extend(new)
        end.match = None

    def _find(self, end: TextEnd) -> tuple[int, int, int]:
        if end.match is None:
            length, low, high = self.store.find(end.tokens, most=self.max_match)
            end.match = (length, low, high) if length >= self.min_match else (0, 0, 0)
        return end.match

    def _steps(self, text: TextEnd, job: Job, written: Sequence[int]) -> Iterator[tuple[int, Signals]]:
        """Yield the most frequent token of each column among the rows that agree with all tokens before."""
        length, low, high = self._find(text)
        rows = self.store.continuations(low, high, most=self.candidates, length=job.length) if length else []
        joint = 1.0
        for column in range(job.length if length else 0):
            counts = Counter([row[column] for row in rows])
            token = counts.most_common(1)[0][0]
            signals = tally(counts.values())
            joint *= signals.chosen
            if token == self.store.separator or joint < self.min_prob:
                return
            yield token, signals
            rows = [row for row in rows if row[column] == token]


@dataclass(slots=True, eq=False)
class TextEnd:
    """The last tokens of one request, and their match in the datastore: its length and interval."""

    tokens: deque[int]
    match: tuple[int, int, int] | None = None

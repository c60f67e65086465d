"""Prompt lookup: copies what followed the last few tokens at their latest earlier occurrence in this text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Annotated

from ...core.drafts import Job, Signals
from ...core.request import Request
from ...errors import UserError
from .indices import ngrams
from .ngrams import Ngrams
from .picked import ContinuingDrafter

LONGEST = 64


class NgramDrafter(ContinuingDrafter[Ngrams]):
    """Copies what followed the latest earlier occurrence of the text's last `min` to `max` tokens.

    The longest match wins. Every n-gram of prompt and output is indexed as it is committed, so neither a
    hint nor a draft scans the text; each costs O(max) per committed token. How far the match goes back beyond
    `max` tokens is counted, up to 32: a longer one is right more often. A continuation that reaches the
    end of the text is repeated periodically. The confidence is the acceptance rate of matches of that length
    in this text so far (Laplace's rule).

    Source: prompt lookup decoding (Saxena 2023).

    Raises:
        UserError: not 1 <= min <= max <= 64.
    """

    def __init__(
        self,
        *,
        min: Annotated[int, "shortest match in tokens"] = 1,
        max: Annotated[int, "longest match in tokens"] = 4,
    ) -> None:
        if not 1 <= min <= max <= LONGEST:
            raise UserError(f"ngram?min={min}&max={max}: give 1 <= min <= max <= {LONGEST}")
        super().__init__()
        self.min, self.max = min, max

    def hint(self, request: Request) -> float:
        """Return how many tokens at the text's end are those before the place that it copies; 0 = none."""
        return float(self.match_after(request, ()))

    def guess(self, request: Request, length: int) -> list[int]:
        text = self.texts.get(request.id)
        return text.continuation(length)[0] if text else []

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        """Return the hint after the text and these tokens, by what is indexed of the text alone."""
        text = self.texts.get(request.id)
        return text.matched(written) if text else 0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        if request.id not in self.texts:
            self.texts[request.id] = ngrams(self.min, self.max)
        self.texts[request.id].extend(new)

    def _steps(self, text: Ngrams, job: Job, written: Sequence[int]) -> Iterator[tuple[int, Signals]]:
        tokens, shares = text.continuation(job.length, written)
        by_share = {p: _signals(p) for p in set(shares)}
        return ((token, by_share[p]) for token, p in zip(tokens, shares, strict=True))


def _signals(p: float) -> Signals:
    """Return the signals of a guess that is right with probability p; the rest counts as one other token."""
    return Signals(p, min(p, 1.0 - p), -p * log(p) - (1.0 - p) * log(1.0 - p), p)

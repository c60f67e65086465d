"""Prompt lookup: copies what followed the last few tokens at their latest earlier occurrence in this text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Annotated

from ...core.drafts import Draft, Job, Signals
from ...core.request import Request
from ...errors import UserError
from .indices import Ngrams, ngrams
from .picked import chain

LONGEST = 64


class NgramDrafter:
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

    has_probabilities = False

    def __init__(
        self,
        *,
        min: Annotated[int, "shortest match in tokens"] = 1,
        max: Annotated[int, "longest match in tokens"] = 4,
    ) -> None:
        if not 1 <= min <= max <= LONGEST:
            raise UserError(f"ngram?min={min}&max={max}: give 1 <= min <= max <= {LONGEST}")
        self.min, self.max = min, max
        self._texts: dict[int, Ngrams] = {}

    def hint(self, request: Request) -> float:
        """How many tokens at the end of the text are those before the place that it copies; 0 = none."""
        text = self._texts.get(request.id)
        return float(text.length) if text else 0.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job, of the job's full length unless a stop rule fires or nothing matches."""
        return [self._chain(job) for job in jobs]

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """One chain per job, as if these tokens had been written."""
        return [self._chain(job, tokens) for job, tokens in zip(jobs, written, strict=True)]

    def guess(self, request: Request, length: int) -> list[int]:
        """The tokens alone of a draft of this length that no rule stops."""
        text = self._texts.get(request.id)
        return text.continuation(length)[0] if text else []

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        """The hint after the text and these tokens, by what is indexed of the text alone."""
        text = self._texts.get(request.id)
        return text.matched(written) if text else 0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Index the tokens just committed."""
        text = self._texts.get(request.id)
        if text is None:
            text = self._texts[request.id] = ngrams(self.min, self.max)
        text.extend(new)

    def close(self, request: Request) -> None:
        """Drop the request's text."""
        self._texts.pop(request.id, None)

    def _chain(self, job: Job, written: Sequence[int] = ()) -> Draft:
        text = self._texts.get(job.request.id)
        return chain(job, _steps(*text.continuation(job.length, written)) if text else ())


def _steps(tokens: Sequence[int], right: Sequence[float]) -> Iterator[tuple[int, Signals]]:
    signals: dict[float, Signals] = {}
    for token, p in zip(tokens, right, strict=True):
        if p not in signals:
            signals[p] = _signals(p)
        yield token, signals[p]


def _signals(p: float) -> Signals:
    """Signals of one guess that is correct with probability p; the rest counts as one other token."""
    return Signals(p, min(p, 1.0 - p), -p * log(p) - (1.0 - p) * log(1.0 - p), p)

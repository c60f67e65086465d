"""Prompt lookup: copies what followed the last few tokens at their latest earlier occurrence in this text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import log
from typing import Annotated

from ...core.drafts import Draft, Job, Signals
from ...core.request import Request
from ...errors import UserError
from .picked import chain

BITS = 32  # per token of an n-gram key; ids are shifted by one, so that 0 is "before the text"
LONGEST = 64
LOOKED = 32  # tokens of a match that are counted at most


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

    def __init__(
        self,
        *,
        min: Annotated[int, "shortest match in tokens"] = 1,
        max: Annotated[int, "longest match in tokens"] = 4,
    ) -> None:
        if not 1 <= min <= max <= LONGEST:
            raise UserError(f"ngram?min={min}&max={max}: give 1 <= min <= max <= {LONGEST}")
        self.min, self.max = min, max
        self._texts: dict[int, _Text] = {}

    def hint(self, request: Request) -> float:
        """How many tokens at the end of the text are those before the place that it copies; 0 = none."""
        text = self._texts.get(request.id)
        return float(text.length) if text else 0.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job, of the job's full length unless a stop rule fires or nothing matches."""
        return [self._chain(job) for job in jobs]

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """One chain per job, as if these tokens had been written."""
        drafts = []
        for job, tokens in zip(jobs, written, strict=True):
            text = self._texts.get(job.request.id)
            if text is None:
                drafts.append(Draft())
                continue
            with text.extended(tokens):
                drafts.append(self._chain(job))
        return drafts

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        """The hint after the text and these tokens."""
        text = self._texts.get(request.id)
        return text.after(written) if text else 0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Index the tokens just committed."""
        text = self._texts.get(request.id)
        if text is None:
            text = self._texts[request.id] = _Text(self.min, self.max)
        text.extend(new)

    def close(self, request: Request) -> None:
        """Drop the request's text."""
        self._texts.pop(request.id, None)

    def _chain(self, job: Job) -> Draft:
        text = self._texts.get(job.request.id)
        return chain(job, text.continuation() if text else ())


class _Text:
    """The tokens of one request and the position where each of their n-grams last ended.

    `match` is the longest n-gram at the end that occurred before, `length` how far both agree.
    """

    __slots__ = ("_hits", "_key", "_mask", "_orders", "_source", "_tries", "length", "match", "tokens")

    def __init__(self, shortest: int, longest: int) -> None:
        self.tokens: list[int] = []
        self.match = self.length = 0
        self._source = 0  # the position after the matched n-gram's earlier occurrence
        self._key = 0
        self._mask = (1 << BITS * longest) - 1
        self._orders: list[tuple[int, int, dict[int, int]]] = [
            (n, (1 << BITS * n) - 1, {}) for n in range(longest, shortest - 1, -1)
        ]
        self._hits = [1] * (longest + 1)
        self._tries = [2] * (longest + 1)

    def extend(self, new: Sequence[int]) -> None:
        tokens, key, match, source = self.tokens, self._key, self.match, self._source
        for token in new:
            if match:
                self._tries[match] += 1
                self._hits[match] += tokens[source] == token
            tokens.append(token)
            after = len(tokens)
            key = (key << BITS | token + 1) & self._mask
            match = 0
            for n, mask, seen in self._orders:
                gram = key & mask
                if not match and gram in seen:
                    match, source = n, seen[gram]
                seen[gram] = after
        self._key, self.match, self._source = key, match, source
        self.length = self._common(source, tokens, match) if match == len(self._hits) - 1 else match

    def after(self, new: Sequence[int]) -> int:
        """The match after these tokens as well."""
        if not new:
            return self.length
        key = self._key
        for token in new:
            key = key << BITS | token + 1
        for n, mask, seen in self._orders:
            if (source := seen.get(key & mask)) is not None:
                tail = [*self.tokens[-LOOKED:], *new]
                return self._common(source, tail, n) if n == len(self._hits) - 1 else n
        return 0

    def _common(self, source: int, end: Sequence[int], known: int) -> int:
        """How many tokens before `source` are those at the `end`, up to `LOOKED`; so many are known."""
        tokens, n, most = self.tokens, known, min(source, len(end), LOOKED)
        while n < most and tokens[source - n - 1] == end[-n - 1]:
            n += 1
        return max(n, known)

    @contextmanager
    def extended(self, new: Sequence[int]) -> Iterator[None]:
        """The text with these tokens, which are taken back afterwards."""
        length, key, match, source = len(self.tokens), self._key, self.match, self._source
        common = self.length
        hits, tries, before = list(self._hits), list(self._tries), []
        for token in new:
            key = (key << BITS | token + 1) & self._mask
            before += [(seen, key & mask, seen.get(key & mask)) for _, mask, seen in self._orders]
        key = self._key
        self.extend(new)
        try:
            yield
        finally:
            del self.tokens[length:]
            self._key, self.match, self._source, self._hits, self._tries = key, match, source, hits, tries
            self.length = common
            for seen, gram, place in before:
                if place is None:
                    seen.pop(gram, None)
                else:
                    seen[gram] = place

    def continuation(self) -> Iterator[tuple[int, Signals]]:
        """The tokens that would follow, without end; none if nothing matches."""
        if not self.match:
            return
        tokens, source = self.tokens, self._source
        period, longest = len(tokens) - source, len(self._hits) - 1
        # Each copied token lengthens the match, up to the longest n-gram that is scored.
        for position in count():
            n = self.match + position
            if n <= longest:
                signals = _signals(self._hits[n] / self._tries[n])
            yield tokens[source + position % period], signals


def _signals(p: float) -> Signals:
    """Signals of one guess that is correct with probability p; the rest counts as one other token."""
    return Signals(p, min(p, 1.0 - p), -p * log(p) - (1.0 - p) * log(1.0 - p), p)

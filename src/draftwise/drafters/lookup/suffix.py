"""SuffixDecoding: the most likely continuation of the text, from a counting suffix automaton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ...core.drafts import Draft, Job, Signals
from ...core.request import Request
from ...core.stops import needs
from ...errors import UserError
from .automaton import ROOT, Step, Walks
from .indices import Suffixes, automaton
from .picked import chain, share, tally

MOST = 1 << 20  # of `tries` and `depth`


class SuffixDrafter:
    """Follows the most frequent continuation of the text's end, as far as the match and its counts allow.

    A match of m tokens drafts at most `factor` * m + `offset` tokens, while the product of the continuations'
    frequencies is at least `min_prob`. The `tries` longest suffixes of the text with different counts compete
    by the sum of those products, the expected number of accepted tokens. Contexts are counted up to `depth`
    tokens; when a text exceeds `max_tokens`, only its latest half is indexed again.

    `history` is how many tokens of earlier outputs, of all requests together, to learn from as well; at least
    the latest half of them is indexed at any time, and at most one and a half times as many. It is off (0) by
    default: the speed of one user's answer should not reveal another user's text, and a run should not depend
    on earlier runs.

    The probabilities given with a draft are those frequencies, with half a count reserved for unseen tokens;
    signals that no stop rule of the job reads may be 0.

    The defaults for length suit a target on which a drafted token costs 3 to 6 % of a pass, on greedy answers
    to 98 prompts of the training files; the optimum is flat. SuffixDecoding's are 1, 0 and 0.1.

    Source: SuffixDecoding (arXiv 2411.04975).

    Raises:
        UserError: a setting is out of its range.
    """

    has_probabilities = False

    def __init__(
        self,
        *,
        factor: Annotated[float, "draft tokens per matched token"] = 2.0,
        offset: Annotated[float, "draft tokens beyond that"] = 1.0,
        min_prob: Annotated[float, "least estimated probability of the whole draft"] = 0.2,
        tries: Annotated[int, "matches that compete"] = 4,
        depth: Annotated[int, "longest match in tokens"] = 32,
        max_tokens: Annotated[int, "tokens of a text that are indexed"] = 32768,
        history: Annotated[int, "tokens of earlier outputs, of all requests, to draft from"] = 0,
    ) -> None:
        _require("factor", factor, 0.0 <= factor < 1e6, "a number from 0 to a million")
        _require("offset", offset, 0.0 <= offset < 1e6, "a number from 0 to a million")
        _require("factor", factor, factor + offset > 0.0, "more than 0, or an offset: nothing is drafted")
        _require("min_prob", min_prob, 0.0 <= min_prob <= 1.0, "a probability")
        _require("tries", tries, 1 <= tries <= MOST, f"1 to {MOST}")
        _require("depth", depth, 1 <= depth <= MOST, f"1 to {MOST}")
        _require("max_tokens", max_tokens, max_tokens >= 2, "2 or more")
        _require("history", history, history == 0 or history >= 2, "0 (off), or 2 or more tokens")
        self.walks = Walks(tries, factor, offset, min_prob)
        self.depth, self.max_tokens = depth, max_tokens
        self._texts: dict[int, _Text] = {}
        self._earlier = _Earlier(history, depth) if history else None

    def hint(self, request: Request) -> float:
        """The length of the longest suffix of the text that was followed by a token before; 0 = none."""
        text = self._texts.get(request.id)
        if text is None:
            return 0.0
        match = text.index.match
        if self._earlier:
            match = max(match, self._earlier.index.matched(*self._earlier.find(text)))
        return float(match)

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job; empty if nothing matches."""
        return [self._chain(job) for job in jobs]

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        """One chain per job after these tokens; what follows them is counted in the text without them."""
        return [self._chain(job, tokens) for job, tokens in zip(jobs, written, strict=True)]

    def guess(self, request: Request, length: int) -> list[int]:
        """The tokens alone of a draft of this length that no rule stops."""
        text = self._texts.get(request.id)
        return [step[0] for step in self._likeliest(text, length)[0]] if text else []

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        """The longest end of the text and these tokens that was followed by a token before."""
        text = self._texts.get(request.id)
        if text is None:
            return 0
        found = [text.index.matched(*text.index.steps(text.index.deepest, text.index.held, written))]
        if self._earlier:
            index = self._earlier.index
            found.append(index.matched(*index.steps(*self._earlier.find(text), written)))
        return max(found)

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Index the tokens just committed."""
        text = self._texts.get(request.id)
        if text is None:
            text = self._texts[request.id] = _Text(automaton(self.depth), prompt=len(new))
        text.extend(new, most=self.max_tokens)

    def close(self, request: Request) -> None:
        """Drop the request's text; its output is added to the history, if there is one."""
        text = self._texts.pop(request.id, None)
        if text and self._earlier:
            self._earlier.add(text.tokens[text.prompt :])

    def _chain(self, job: Job, written: Sequence[int] = ()) -> Draft:
        text = self._texts.get(job.request.id)
        return chain(job, self._steps(text, job, written) if text else ())

    def _steps(self, text: _Text, job: Job, written: Sequence[int]) -> Iterator[tuple[int, Signals]]:
        steps, index = self._likeliest(text, job.length, written)
        # A context may have thousands of continuations: they are counted only if a rule reads the result.
        closely = not needs(job.stops).isdisjoint({"top2", "entropy"})
        for token, count, follows, context in steps:
            if closely:
                yield token, tally(index.counts(context))
            else:
                p = share(count, follows)
                yield token, Signals(p, 0.0, 0.0, p)

    def _likeliest(
        self, text: _Text, length: int, written: Sequence[int] = ()
    ) -> tuple[list[Step], Suffixes]:
        """The best of the walks from the longest matches, in this text and in the history."""
        index = text.index
        at = index.steps(index.deepest, index.held, written) if written else (index.deepest, index.match)
        score, steps = index.likeliest(*at, length, self.walks)
        if self._earlier:
            older = self._earlier.index
            at = older.steps(*self._earlier.find(text), written)
            other, more = older.likeliest(*at, length, self.walks)
            if other > score:  # of equals, this text's
                return more, older
        return steps, index


@dataclass(slots=True, eq=False)
class _Text:
    """One request: its tokens, the length of its prompt, their index, and its place in the history.

    The place is that of the text `behind` tokens ago.
    """

    index: Suffixes
    prompt: int
    tokens: list[int] = field(default_factory=list)
    edition: int = -1
    state: int = ROOT
    held: int = 0
    behind: int = 0

    def extend(self, new: Sequence[int], *, most: int) -> None:
        self.tokens += new
        self.behind += len(new)
        if len(self.tokens) <= most:
            self.index.extend(new)
            return
        dropped = len(self.tokens) - most // 2
        del self.tokens[:dropped]
        self.prompt = max(0, self.prompt - dropped)
        self.index = automaton(self.index.depth)
        self.index.extend(self.tokens)


class _Earlier:
    """The latest outputs of all requests, in two overlapping generations, so that the oldest can be dropped
    without indexing the rest again."""

    def __init__(self, size: int, depth: int) -> None:
        self.half = size // 2
        self.index, self._younger = automaton(depth), automaton(depth)
        self._edition = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Add an output, or the end of one that is too long."""
        tokens = tokens[-self.half :]
        if self.index.size + len(tokens) > 2 * self.half:
            self.index, self._younger = self._younger, automaton(self.index.depth)
        generations = [self.index, self._younger] if self.index.size >= self.half else [self.index]
        for index in generations:
            index.begin()
            index.extend(tokens)
        self._edition += 1

    def find(self, text: _Text) -> tuple[int, int]:
        """The state of the longest suffix of `text` in the history, and its length."""
        index = self.index
        most = min(index.depth, len(text.tokens))
        if text.edition != self._edition or text.behind > most:
            text.edition, text.state, text.held, text.behind = self._edition, ROOT, 0, most
        new = text.tokens[len(text.tokens) - text.behind :]
        text.state, text.held = index.steps(text.state, text.held, new)
        text.behind = 0
        return text.state, text.held


def _require(name: str, value: float, fits: bool, wanted: str) -> None:
    if not fits:
        raise UserError(f"suffix?{name}={value}: give {wanted}")

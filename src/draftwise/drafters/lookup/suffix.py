"""SuffixDecoding: the most likely continuation of the text, from a counting suffix automaton."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ...core.drafts import Job, Signals
from ...core.request import Request
from ...core.stops import needs
from ...errors import UserError
from ...registry import Within
from .automaton import ROOT, Automaton, Step, Walks
from .indices import automaton
from .picked import ContinuingDrafter, share, tally


class SuffixDrafter(ContinuingDrafter["IndexedText"]):
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
        UserError: neither `factor` nor `offset` lets it draft.
    """

    def __init__(
        self,
        *,
        factor: Annotated[float, "draft tokens per matched token", Within(0, 1e6)] = 2.0,
        offset: Annotated[float, "draft tokens beyond that", Within(0, 1e6)] = 1.0,
        min_prob: Annotated[float, "least estimated probability of the whole draft", Within(0, 1)] = 0.2,
        tries: Annotated[int, "matches that compete", Within(1, 1e6)] = 4,
        depth: Annotated[int, "longest match in tokens", Within(1, 1e6)] = 32,
        max_tokens: Annotated[int, "tokens of a text that are indexed", Within(2)] = 32768,
        history: Annotated[int, "tokens of earlier outputs, of all requests, to draft from", Within(0)] = 0,
    ) -> None:
        if not factor + offset > 0.0:
            raise UserError(f"suffix?factor={factor}&offset={offset}: nothing is drafted, give more than 0")
        super().__init__()
        self.walks = Walks(tries, factor, offset, min_prob)
        self.depth, self.max_tokens = depth, max_tokens
        self.history = History(history, depth) if history > 1 else None

    def hint(self, request: Request) -> float:
        """Return the length of the longest suffix that was followed by a token before; 0 = none."""
        text = self.texts.get(request.id)
        if text is None:
            return 0.0
        earlier = self.history.index.matched(*self.history.find(text)) if self.history else 0
        return float(max(text.index.match, earlier))

    def guess(self, request: Request, length: int) -> list[int]:
        text = self.texts.get(request.id)
        return [step[0] for step in self._best_walk(text, length)[0]] if text else []

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        """Return the length of the longest end of text and tokens that was followed by a token before."""
        text = self.texts.get(request.id)
        places = self._places(text, written) if text else ()
        return max((index.matched(*place) for index, *place in places), default=0)

    def observe(self, request: Request, new: Sequence[int]) -> None:
        text = self.texts.get(request.id)
        if text is None:
            text = self.texts[request.id] = IndexedText(automaton(self.depth), prompt=len(new))
        text.extend(new, most=self.max_tokens)

    def close(self, request: Request) -> None:
        """Drop the request's text; its output is added to the history, if there is one."""
        text = self.texts.pop(request.id, None)
        if text and self.history:
            self.history.add(text.tokens[text.prompt :])

    def _steps(self, text: IndexedText, job: Job, written: Sequence[int]) -> Iterator[tuple[int, Signals]]:
        steps, index = self._best_walk(text, job.length, written)
        # A context may have thousands of continuations: they are counted only if a rule reads the result.
        closely = not needs(job.stops).isdisjoint({"top2", "entropy"})
        for token, count, follows, context in steps:
            if closely:
                yield token, tally(index.counts(context))
            else:
                p = share(count, follows)
                yield token, Signals(p, 0.0, 0.0, p)

    def _places(self, text: IndexedText, written: Sequence[int]) -> Iterator[tuple[Automaton, int, int]]:
        """Yield the place after text and these tokens in the text's own index and in the history's."""
        index = text.index
        yield index, *index.steps(index.deepest, index.span, written)
        if self.history:
            index = self.history.index
            yield index, *index.steps(*self.history.find(text), written)

    def _best_walk(
        self, text: IndexedText, length: int, written: Sequence[int] = ()
    ) -> tuple[list[Step], Automaton]:
        """Return the best of the walks from the longest matches, in this text and in the history."""
        best: list[Step] = []
        highest, which = 0.0, text.index
        for index, state, span in self._places(text, written):
            if index is text.index and not written:
                span = index.match  # may be longer than what is counted
            score, steps = index.best_walk(state, span, length, self.walks)
            if score > highest:  # of equals, this text's
                best, highest, which = steps, score, index
        return best, which


@dataclass(slots=True, eq=False)
class IndexedText:
    """One request: its tokens, the length of its prompt, their index, and its place in the history.

    The place is that of the text `behind` tokens ago, in the history's `version`.
    """

    index: Automaton
    prompt: int
    tokens: list[int] = field(default_factory=list)
    version: int = -1
    place: tuple[int, int] = (ROOT, 0)
    behind: int = 0

    def extend(self, new: Sequence[int], *, most: int) -> None:
        """Add tokens; if there are more than `most`, index only the latest half of these again."""
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


class History:
    """The latest outputs of all requests, in two overlapping generations, so that the oldest can be dropped
    without indexing the rest again."""

    def __init__(self, size: int, depth: int) -> None:
        self.half = size // 2
        self.index, self.younger = automaton(depth), automaton(depth)
        self.version = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Add an output, or the end of one that is too long."""
        tokens = tokens[-self.half :]
        if self.index.size + len(tokens) > 2 * self.half:
            self.index, self.younger = self.younger, automaton(self.index.depth)
        for index in [self.index, self.younger] if self.index.size >= self.half else [self.index]:
            index.begin()
            index.extend(tokens)
        self.version += 1

    def find(self, text: IndexedText) -> tuple[int, int]:
        """Return the state of the longest suffix of `text` in the history, and its length."""
        most = min(self.index.depth, len(text.tokens))
        if text.version != self.version or text.behind > most:
            text.version, text.place, text.behind = self.version, (ROOT, 0), most
        new = text.tokens[len(text.tokens) - text.behind :]
        text.place, text.behind = self.index.steps(*text.place, new), 0
        return text.place

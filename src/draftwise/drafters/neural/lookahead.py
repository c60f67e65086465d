"""Lookahead decoding: the target's pass includes Jacobi guesses, whose n-grams are verified later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...models.runner.hidden_states import Source
from ...registry import Within

Gram = tuple[int, ...]
KEPT = 4  # drafts of a text whose layout is kept until the target has verified one of them


@dataclass(slots=True)
class Text:
    """One text: its n-grams by their first token, the latest last; and the window of guesses, row by row."""

    tail: Gram = ()
    grams: dict[int, OrderedDict[Gram, None]] = field(default_factory=dict)
    window: list[list[int]] = field(default_factory=list)
    drafts: list[tuple[Draft, list[int]]] = field(default_factory=list)  # with the last node of each column

    def add(self, gram: Gram, most: int) -> None:
        """Add an n-gram; if there are too many with its first token, drop the oldest."""
        grams = self.grams.setdefault(gram[0], OrderedDict())
        grams[gram[1:]] = None
        grams.move_to_end(gram[1:])
        while len(grams) > most:
            grams.popitem(last=False)


class LookaheadDrafter:
    """Drafts n-grams that the target predicted for guessed prefixes; nothing is trained or loaded.

    A `width`, or a wider arm, gives as many branches. Half of them are n-grams that begin with the last token
    (the verification branch). The other half is a window of guesses for the next positions (the lookahead
    branch), laid out as a tree; the target's continuations of the window give new n-grams of `n` tokens and
    the next window. Both are verified, so a correct guess is accepted as well. Column k of the window ends k
    + `n` - 2 tokens deep: an arm of length l has at most l - `n` + 2 columns; an arm of width 1 has none and
    drafts only the latest n-gram. `pool` n-grams are kept for each first token.

    Source: Lookahead decoding (arXiv 2402.02057).
    """

    has_probabilities = False

    def __init__(
        self,
        target: Source,
        *,
        width: Annotated[int, "branches of the tree", Within(1)] = 1,
        n: Annotated[int, "tokens in an n-gram", Within(2)] = 5,
        pool: Annotated[int, "n-grams kept for each first token", Within(1)] = 16,
    ) -> None:
        self.branches, self.n, self.pool = width, n, pool
        if target.guesses is None:
            target.guesses = {}
        self.guesses = target.guesses
        self.texts: dict[int, Text] = {}

    def hint(self, request: Request) -> float:
        """The number of n-grams that begin with the last token."""
        text = self.texts.get(request.id)
        return float(len(text.grams.get(request.tokens[-1], ()))) if text else 0.0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Collect n-grams from the committed tokens, and from the target's continuations of the guesses."""
        text = self.texts.setdefault(request.id, Text())
        for token in new:
            text.tail = (*text.tail, token)[-self.n :]
            if len(text.tail) == self.n:
                text.add(text.tail, self.pool)
        draft, choices = self.guesses.get(request.id, (None, []))
        tips = next((tips for drafted, tips in text.drafts if drafted is draft), None)
        if tips:
            self._advance(text, [choices[tip + 1] for tip in tips])
        text.drafts.clear()

    def close(self, request: Request) -> None:
        self.texts.pop(request.id, None)

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One tree per job: n-grams first, then as much of the window as fits."""
        return [self._draft(replace(job, width=max(job.width, self.branches))) for job in jobs]

    def _draft(self, job: Job) -> Draft:
        text = self.texts.setdefault(job.request.id, Text())
        nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node

        def add(parent: int, token: int) -> int:
            return nodes.setdefault((parent, token), len(nodes))

        latest = reversed(text.grams.get(job.request.tokens[-1], OrderedDict[Gram, None]()))
        for _, gram in zip(range(job.width - job.width // 2), latest, strict=False):
            node = -1
            for token in gram[: job.length]:
                node = add(node, token)
        tips: list[int] = []
        trunk = -1
        for column in self._window(text, job):
            node = trunk = add(trunk, column[0])
            for token in column[1:]:
                node = add(node, token)
            tips.append(node)
        draft = Draft(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))
        text.drafts = [*text.drafts[1 - KEPT :], (draft, tips)]
        return draft

    def _window(self, text: Text, job: Job) -> list[list[int]]:
        """The guesses by column, as many as end within the draft's length; initially tokens of the text."""
        tokens, columns = job.request.tokens, max(0, min(job.width // 2, job.length - self.n + 2))
        while len(text.window) < columns:
            k = len(text.window)
            text.window.append([tokens[(7 * k + 3 * r) % len(tokens)] for r in range(self.n - 1)])
        return text.window[:columns]

    def _advance(self, text: Text, tokens: Sequence[int]) -> None:
        """Use the target's continuation of every column: new n-grams, and the window moves on by one
        position."""
        for k, token in enumerate(tokens):
            column = text.window[k]
            text.add((*column, token), self.pool)
            text.window[k] = [*column[1:], token]

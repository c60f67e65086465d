"""Rows that take their steps together, so that everything is called as plain decoding calls it.

A processor may keep a state, know rows by their index, or look at the whole batch. Then there is one right
way to call it: once a step, with all rows, each with its text up to that step. So after every pass the steps
of plain decoding are made one by one, all rows at once, for as long as the pass has logits for every row: a
row has them where its draft was right. The row that was guessed worst decides how many steps that are; what
was right beyond them is read again.

Each step draws its tokens as plain decoding does, so that a seed gives the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from ...core.drafts import NOTHING, Draft
from ...core.request import Request
from ...core.roles import Scores
from ...targets.scores import GreedyScores
from .steps import Steps

Reader = Callable[[int, Sequence[int], int], Tensor]


class Together:
    """The steps of one call's rows, whose requests are `requests`, in the order of the batch.

    `processors` are all that `generate` prepared. `read` gives a row's logits at the last n of the tokens
    that follow its prompt, shape (n, vocabulary), and `limit` is the most steps there may be.
    """

    def __init__(
        self, steps: Steps, processors: LogitsProcessorList, *, sample: bool, limit: int, read: Reader
    ) -> None:
        self.steps, self.processors, self.sample = steps, processors, sample
        self.padding = Padding(steps, limit, read)
        self.requests: Sequence[Request] = ()
        self.failed: Exception | None = None

    def prepare(self, batch: Sequence[tuple[Request, Draft]]) -> None:
        """Have what the steps after the next pass need beside it; a call that failed once has failed."""
        if self.failed is not None:
            raise self.failed
        most = 1 + max(len(draft.tokens) for _, draft in batch)
        for row in range(len(self.requests)):
            if self.steps.padded(row):
                self.padding.read_ahead(row, most)

    def scores(self, batch: Sequence[tuple[Request, Draft]], logits: Sequence[Tensor]) -> list[Scores]:
        """Scores that share one walk, made when the first of them is asked."""
        walk = Walk(self)
        views = [StepScores(draft, rows, walk) for (_, draft), rows in zip(batch, logits, strict=True)]
        by_id = {request.id: view for (request, _), view in zip(batch, views, strict=True)}
        walk.views = {row: by_id[r.id] for row, r in enumerate(self.requests) if r.id in by_id}
        return list(views)


class Walk:
    """The steps that one pass allows."""

    def __init__(self, together: Together) -> None:
        self.together = together
        self.views: Mapping[int, StepScores] = {}
        self.made = False

    def make(self) -> None:
        """Make the steps, once; what one of them raises is everyone's, as in plain decoding."""
        if self.together.failed is not None:
            raise self.together.failed
        if not self.made:
            self.made = True
            try:
                while self._step():
                    pass
            except Exception as error:
                self.together.failed = error
                raise

    def _step(self) -> bool:
        """One step of all rows; whether the pass has logits for another."""
        together, steps = self.together, self.together.steps
        raw = torch.stack([self._logits(row) for row in range(len(steps.ids))]).to(steps.ids.device)
        ids: Any = steps.ids
        scores: Any = together.processors(ids, raw)
        steps.record(scores, raw)
        if together.sample:
            tokens = torch.multinomial(scores.softmax(-1), num_samples=1).squeeze(1)
        else:
            tokens = scores.argmax(-1)
        drawn = tokens.tolist()
        for row, view in self.views.items():
            view.drawn[view.node] = drawn[row]
        steps.add(tokens)
        if steps.done or any(steps.padded(row) for row in self.views):
            return False  # what follows the end of a row is read before the next pass
        return all([view.descend() for view in self.views.values()])

    def _logits(self, row: int) -> Tensor:
        """The logits of a row's next token, a float32 copy of shape (vocabulary,)."""
        view = self.views.get(row)
        if view is None:
            return self.together.padding.logits(row)
        return view.logits[view.node + 1].to(torch.float32, copy=True)


class StepScores(GreedyScores):
    """What the steps made of one row's draft: the target's law is the token that was drawn.

    Beyond the steps the target has nothing to say in this round.
    """

    __slots__ = ("drawn", "node", "walk")

    def __init__(self, draft: Draft, logits: Tensor, walk: Walk) -> None:
        super().__init__(draft, logits, ())
        self.walk = walk
        self.node = -1
        self.drawn: dict[int, int] = {}

    def descend(self) -> bool:
        """Go on to the child that carries the drawn token, if there is one."""
        token, draft = self.drawn[self.node], self.draft
        below = (i for i, parent in enumerate(draft.parents) if parent == self.node)
        child = next((i for i in below if draft.tokens[i] == token), None)
        self.node = self.node if child is None else child
        return child is not None

    def choice(self, node: int) -> int:
        """The token that was drawn after `node`, or `NOTHING` where no step was made."""
        self.walk.make()
        return self.drawn.get(node, NOTHING)


class Padding:
    """The logits that plain decoding computes for a finished row while it feeds it padding.

    They decide nothing, but processors see them and `output_scores` has them. They are read ahead, each time
    twice as many.
    """

    def __init__(self, steps: Steps, limit: int, read: Reader) -> None:
        self.steps, self.limit, self.read = steps, limit, read
        self.ahead: dict[int, tuple[int, Tensor]] = {}  # by row: the step of the first, and all of them

    def read_ahead(self, row: int, n: int) -> None:
        """Have those of the next `n` steps of a finished row."""
        step = self.steps.count
        first, known = self.ahead.get(row, (step, torch.empty(0)))
        if step + n > first + len(known) < self.limit:
            n = max(min(max(n, 2 * len(known), 16), self.limit - step), 1)
            written = self.steps.ids[row, self.steps.ids.shape[1] - step :].tolist()
            self.ahead[row] = step, self.read(row, [*written, *(self.steps.pad,) * (n - 1)], n)

    def logits(self, row: int) -> Tensor:
        """Those of the next step, a float32 copy of shape (vocabulary,)."""
        first, known = self.ahead[row]
        return known[self.steps.count - first].to(torch.float32, copy=True)

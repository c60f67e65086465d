"""Rows that make their steps together, so that every processor is called as in plain decoding.

A processor may keep a state, identify rows by index, or use the whole batch. Then there is only one correct
way to call it: once per step, with all rows, each with its text up to that step. So after every pass the
steps of plain decoding are made one by one, for all rows at once, while the pass has logits for every row: a
row has them as long as its draft was correct. The row with the fewest correct tokens determines the number of
steps; correct tokens beyond them are computed again.

Each step samples its tokens as plain decoding does, so a seed gives the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from ...core.drafts import NOTHING, Draft
from ...core.request import Request
from ...core.roles import Scores
from ...errors import UserError
from ...targets.scores import GreedyScores


class Steps:
    """The state that plain `generate` keeps from step to step, for a whole batch: the ids so far, the
    finished rows, and the stopping criteria and streamer, which are called as in plain decoding.

    A step is one token of every row. Rows that are ahead wait.
    """

    def __init__(
        self, input_ids: Tensor, criteria: StoppingCriteriaList, config: GenerationConfig, streamer: Any
    ) -> None:
        self.ids, self.criteria, self.streamer = input_ids, criteria, streamer
        self.count = 0
        self.unfinished = torch.ones(len(input_ids), dtype=torch.long, device=input_ids.device)
        # Without an end-of-text criterion, finished rows continue until all are finished.
        self.pads = any(hasattr(c, "eos_token_id") for c in criteria)
        pad = getattr(config, "_pad_token_tensor", None)
        if self.pads and pad is None:
            raise UserError("pad_token_id=None: give one, since rows may end at different lengths")
        self.pad = 0 if pad is None else int(pad)
        returned = bool(config.return_dict_in_generate)
        self.scores: tuple[Tensor, ...] | None = () if returned and config.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if returned and config.output_logits else None
        self.open = [True] * len(input_ids)

    @property
    def done(self) -> bool:
        """True once every row is finished."""
        return not any(self.open)

    def padded(self, row: int) -> bool:
        """Return whether a finished row gets padding from now on."""
        return self.pads and not self.open[row]

    def record(self, scores: Tensor, logits: Tensor) -> None:
        """Store the scores and logits of the next tokens, shape (rows, vocabulary), if requested."""
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (logits,)

    def add(self, tokens: Tensor) -> None:
        """Append one token to every row, shape (rows,); finished rows get padding instead."""
        if self.pads:
            tokens = tokens * self.unfinished + self.pad * (1 - self.unfinished)
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=-1)
        ids: Any = self.ids
        ended: Any = self.criteria(ids, self.scores)
        self.unfinished = self.unfinished & ~ended
        self.open = [bool(row) for row in self.unfinished.tolist()]
        self.count += 1
        if self.streamer is not None:
            self.streamer.put(tokens.cpu())


class Together:
    """The steps of one call's rows, whose requests are `requests`, in the order of the batch.

    `processors` are all that `generate` prepared, and `padding` has the logits of finished rows: a `Padding`,
    or a target that reads them in the same passes. `views` are the latest pass's scores, by row.
    """

    def __init__(self, steps: Steps, processors: LogitsProcessorList, padding: Any, *, sample: bool) -> None:
        self.steps, self.processors, self.padding, self.sample = steps, processors, padding, sample
        self.requests: Sequence[Request] = ()
        self.views: Mapping[int, StepScores] = {}
        self.is_walked = False
        self.error: Exception | None = None

    def prepare(self, batch: Sequence[tuple[Request, Draft]]) -> None:
        """Compute the padding logits for the next pass; raises if an earlier step of the call failed."""
        if self.error is not None:
            raise self.error
        most = 1 + max(len(draft.tokens) for _, draft in batch)
        for row in range(len(self.requests)):
            if self.steps.padded(row):
                self.padding.read_ahead(row, most)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep the error of a pass or a step within the block: it fails all rows, as in plain decoding."""
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    def scores(self, batch: Sequence[tuple[Request, Draft]], logits: Sequence[Tensor]) -> list[Scores]:
        """Return scores of a pass; its steps are made when the first of them is requested."""
        views = [StepScores(draft, rows, self) for (_, draft), rows in zip(batch, logits, strict=True)]
        by_id = {request.id: view for (request, _), view in zip(batch, views, strict=True)}
        self.views = {row: by_id[r.id] for row, r in enumerate(self.requests) if r.id in by_id}
        self.is_walked = False
        return list(views)

    def walk(self) -> None:
        """Make the steps that the latest pass allows, once."""
        if self.error is not None:
            raise self.error
        if not self.is_walked:
            self.is_walked = True
            with self.guard():
                while self._step():
                    pass

    def _step(self) -> bool:
        """Make one step of all rows; return whether the pass has logits for another."""
        steps, ids = self.steps, cast("torch.LongTensor", self.steps.ids)
        raw = torch.stack([self._logits(row) for row in range(len(ids))]).to(ids.device)
        scores: Tensor = self.processors(ids, cast("torch.FloatTensor", raw))
        steps.record(scores, raw)
        if self.sample:
            tokens = torch.multinomial(scores.softmax(-1), num_samples=1).squeeze(1)
        else:
            tokens = scores.argmax(-1)
        chosen = tokens.tolist()
        for row, view in self.views.items():
            view.tokens[view.node] = chosen[row]
        steps.add(tokens)
        if steps.done or any(steps.padded(row) for row in self.views):
            return False  # tokens after the end of a row are read before the next pass
        return all([view.descend() for view in self.views.values()])

    def _logits(self, row: int) -> Tensor:
        """Return the logits of a row's next token, a float32 copy of shape (vocabulary,)."""
        view = self.views.get(row)
        if view is None:
            logits: Tensor = self.padding.logits(row)
            return logits
        return view.logits[view.node + 1].to(torch.float32, copy=True)


class StepScores(GreedyScores):
    """Scores of one row's draft from the steps: the target's distribution is one-hot at the sampled token.

    Nodes beyond the steps have no scores in this round.
    """

    __slots__ = ("node", "together", "tokens")

    def __init__(self, draft: Draft, logits: Tensor, together: Together) -> None:
        super().__init__(draft, logits, ())
        self.together, self.node = together, -1
        self.tokens: dict[int, int] = {}  # the one sampled after each node

    def descend(self) -> bool:
        """Move to the child with the sampled token, if there is one."""
        token, draft = self.tokens[self.node], self.draft
        below = (i for i, parent in enumerate(draft.parents) if parent == self.node)
        child = next((i for i in below if draft.tokens[i] == token), None)
        self.node = self.node if child is None else child
        return child is not None

    def choice(self, node: int) -> int:
        """Return the token that was sampled after `node`, or `NOTHING` if no step was made."""
        self.together.walk()
        return self.tokens.get(node, NOTHING)


class Padding:
    """The logits that plain decoding computes for a finished row while it feeds it padding.

    They do not affect the text, but processors receive them and `output_scores` contains them. They are
    computed ahead, twice as many each time. `read` returns a row's logits at the last n of the tokens that
    follow its prompt, shape (n, vocabulary), and `limits` are the maximum numbers of steps by row.
    """

    def __init__(
        self, steps: Steps, limits: Sequence[int], read: Callable[[int, Sequence[int], int], Tensor]
    ) -> None:
        self.steps, self.limits, self.read = steps, limits, read
        self.ahead: dict[int, tuple[int, Tensor]] = {}  # by row: first step, and the logits from it on

    def read_ahead(self, row: int, n: int) -> None:
        """Compute the logits for the next `n` steps of a finished row."""
        step, limit = self.steps.count, self.limits[row]
        first, logits = self.ahead.get(row, (step, torch.empty(0)))
        if step + n > first + len(logits) < limit:
            n = max(min(max(n, 2 * len(logits), 16), limit - step), 1)
            written = self.steps.ids[row, self.steps.ids.shape[1] - step :].tolist()
            self.ahead[row] = step, self.read(row, [*written, *(self.steps.pad,) * (n - 1)], n)

    def logits(self, row: int) -> Tensor:
        """Return the logits of the next step, a float32 copy of shape (vocabulary,)."""
        first, logits = self.ahead[row]
        return logits[self.steps.count - first].to(torch.float32, copy=True)

"""EAGLE: a head of one layer that continues from the target's hidden states, as a chain or as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob
from ...models.distributions import whole_vocabulary
from ...models.heads.eagle import PairHead, PEagle
from ...models.heads.pairs import PairModel
from ...models.runner import ModelRunner, PassInput
from ...models.runner.hidden_states import Source
from ...models.runner.traits import Traits
from ...models.weights.timing import WIDTHS
from .chains import Chain, Drift, RunsModel, draft_at_once
from .heads import MISS, HeadDrafter, later, trees_by_row
from .trees import draft_trees_at_once

LONG = 16  # from this many pending pairs a row is prefilled in a pass of its own
Texts = Sequence[Sequence[int]]


class PairDrafter(RunsModel, HeadDrafter):
    """Reads pairs of a hidden state of the target and the token after it, in step with the committed text.

    `mask` is the token and the features, shape (1, layers * target width), of pairs that are read after the
    known ones by a head that drafts in parallel.
    """

    hidden_states = True  # for stop rules that read them
    mask: tuple[int, Tensor] | None = None

    def __init__(self, head: PairHead, target: Source, **options: Any) -> None:
        super().__init__(target, head.layers_read, **options)
        self.module, self.ids = head, head.ids
        # Rotary positions and full attention.
        self.runner = ModelRunner(PairModel(head), traits=Traits())
        self.chunk = 96 if self.runner.device.type == "cpu" else 2048  # bounds the memory of long catch-ups

    def close(self, request: Request) -> None:
        self.runner.close(request.id)

    def seat(self, whole: Request, view: Request) -> None:
        super().seat(whole, view)
        self.runner.open(view.id)
        row, other = map(self.runner.request_ids.index, (view.id, whole.id))
        self.runner.share(row, other, min(len(view.tokens) - 2, self.runner.cached_lengths[other]))

    def _catch_up(self, requests: Sequence[Request], ahead: int = 0) -> tuple[Tensor, Tensor]:
        """Read every pair for which the target's state is known, and `ahead` pairs of the mask after it.

        Returns the logits after the last one and the mask's, shape (requests, 1 + ahead, vocabulary), and the
        states there, shape (requests, 1 + ahead, width).
        """
        ends = [len(request.tokens) - 1 for request in requests]
        read = self._read(requests, [(end - 1, end) for end in ends], ahead)
        logits, states = (torch.stack(part) for part in zip(*read, strict=True))
        return logits, states

    def _rows_of(self, requests: Sequence[Request]) -> Sequence[int]:
        for request in requests:
            if request.id not in self.runner.request_ids:
                self.runner.open(request.id)
        return self.runner.move_to_front([r.id for r in requests])

    def _read(
        self, requests: Sequence[Request], spans: Sequence[tuple[int, int]], ahead: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """Read each request's pairs up to the end of its span, and `ahead` pairs of the mask.

        Pair i is the state of token i and token i + 1. Returns the logits after the pairs of each span and of
        the mask, shape (pairs, vocabulary), and the head's states.
        """
        masks = [self.mask[0]] * ahead if self.mask else []
        rows, cached = self._rows_of(requests), self.runner.cached_lengths
        slots = max(len(request.tokens) + request.remaining for request in requests) + ahead
        texts: list[list[int]] = [[]] * len(rows)
        for row, request, (first, end) in zip(rows, requests, spans, strict=True):
            cached[row] = min(cached[row], first)
            while first - cached[row] > LONG:
                upto = min(cached[row] + self.chunk, first)
                states = self._pair_states([(row, request, upto)], 1)
                pairs = request.tokens[cached[row] + 1 : upto + 1]
                self.runner.forward(PassInput(row, [pairs], 1, slots=slots, states=states))
            texts[row] = request.tokens[cached[row] + 1 : end + 1] + masks
        ends = [(row, r, end) for row, r, (_, end) in zip(rows, requests, spans, strict=True)]
        states = self._pair_states(ends, len(rows), ahead)
        widths = [len(texts[row]) for row in rows]
        sizes = [end + ahead - first for first, end in spans]
        keep = max(widths) - min(w - n for w, n in zip(widths, sizes, strict=True))
        output = self.runner.forward(PassInput(0, texts, keep, slots=slots, states=states))
        logits, states = self._whole(output.logits), output.hidden_states[-1][:, -keep:]
        parts = [
            (row, slice(keep - max(widths) + width - n, keep - max(widths) + width))
            for row, width, n in zip(rows, widths, sizes, strict=True)
        ]
        return [(logits[part], states[part]) for part in parts]

    def _whole(self, logits: Tensor) -> Tensor:
        return whole_vocabulary(logits, self.ids, self.module.vocab_size)

    def _pair_states(self, ends: Sequence[tuple[int, Request, int]], n: int, ahead: int = 0) -> Tensor:
        """The states of each row's next pairs, up to an end, and of the mask, in a batch of `n` rows."""
        cached = self.runner.cached_lengths
        parts = [self.features.of(request.id, cached[row], end) for row, request, end in ends]
        if self.mask and ahead:
            masks = self.mask[1].expand(ahead, -1)
            parts = [torch.cat((part.to(masks.device, masks.dtype), masks)) for part in parts]
        states = self.runner.blank_states(n, max(map(len, parts)))
        for (row, _, _), part in zip(ends, parts, strict=True):
            states[row if n > 1 else 0, : len(part)] = self.module.read(part.to(states.device, states.dtype))
        return states


class EagleDrafter(PairDrafter):
    """Drafts from the target's hidden states with a published EAGLE or EAGLE-3 head, a depth a step."""

    def __init__(self, head: PairHead, target: Source, **options: Any) -> None:
        super().__init__(head, target, **options)
        self.drift = Drift()
        self.last = self.runner.blank_states(1, 1)  # states after the latest drafting step, by job

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """Return one grade per committed token, from one pass over the target's own states.

        A draft continues from the head's own states, which drift: grades of its later tokens are lowered by
        the factors measured on its own drafts (`Drift`). A text's first two tokens cannot be predicted, since
        there is no state before them.
        """
        blind = [max(0, 2 - job.start) for job in jobs]
        spans = [(job.start + n - 2, len(job.request.tokens) - 2) for job, n in zip(jobs, blind, strict=True)]
        some = [i for i, (first, end) in enumerate(spans) if first < end]
        read = iter(self._read([jobs[i].request for i in some], [spans[i] for i in some]) if some else ())
        graded = []
        for job, n, (first, end) in zip(jobs, blind, spans, strict=True):
            if first >= end:
                graded.append([MISS] * (len(job.request.tokens) - job.start))
                continue
            later_grades = self._graded(later(job, n), *next(read))
            if not n:
                self.drift.learn(job, later_grades, vocab_size=self.vocab_size, sample=self.sample)
            graded.append([MISS] * n + later_grades)
        return [[self.drift.applied(grade) for grade in of_job] for of_job in graded]

    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft chains or trees; the drafted pairs are rolled back afterwards."""
        logits, self.last = self._catch_up([job.request for job in jobs])
        drafts = None
        if self._is_tree(jobs[0]) and self.runner.executor.drafts:
            given = logits[:, 0], self.last[:, 0], self.ids
            drafts = draft_trees_at_once(self.runner, jobs, *given, top=self.top, gain=self.gain)
        if drafts is None:
            drafts = self._draft_by_steps(jobs, logits, self.last, self._step)
        for row, job in enumerate(jobs):
            # Later pairs hold states of the head's own.
            self.runner.cached_lengths[row] = len(job.request.tokens) - 1
        return drafts

    def _extend_at_once(self, chains: Sequence[Chain], logits: Tensor) -> bool:
        """Draft several tokens without reading the device between them, where the executor can."""
        if not self.runner.executor.drafts:
            return False
        output = draft_at_once(
            self.runner, chains, logits, size=self.vocab_size, states=self.last[:, 0], ids=self.ids
        )
        if output is None or output.states is None:
            return False
        self.last = output.states[: len(chains), None].clone()
        return True

    def _step(self, tokens: Texts, above: Texts, parents: Texts | None) -> tuple[Tensor, Tensor]:
        """Read drafted tokens, each with the head's own state of its parent (see `Step`)."""
        widest = max(map(len, tokens))
        states = self.runner.blank_states(len(tokens), widest)
        for row, (text, at) in enumerate(zip(tokens, above, strict=True)):
            if text:
                # A list of indices is copied to the device, and a GPU's host would wait for that.
                which = slice(at[0], at[0] + 1) if len(at) == 1 else at
                states[row, : len(text)] = self.last[row, which]
        output = self.runner.forward(
            PassInput(0, tokens, widest, parents=trees_by_row(parents), states=states)
        )
        self.last = output.hidden_states[-1]
        return self._whole(output.logits), self.last


class PEagleDrafter(PairDrafter):
    """Drafts all tokens in one pass with a published P-EAGLE head.

    The known pairs are followed by pairs of the head's mask, one for each token after the first. It drafts no
    more tokens than the head was trained for.
    """

    widths = WIDTHS

    def __init__(self, head: PEagle, target: Source, **options: Any) -> None:
        super().__init__(head, target, **options)
        self.mask = (head.mask_token, head.mask_hidden.detach()[0])
        self.longest = head.longest

    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        length = max(job.length for job in jobs)
        length = min(length, self.longest) if self.longest else length
        logits, states = self._catch_up([job.request for job in jobs], ahead=length - 1)
        for row, job in enumerate(jobs):
            self.runner.cached_lengths[row] = len(job.request.tokens) - 1  # the mask's pairs are not text
        return [self._draft_row(job, logits[i], states[i]) for i, job in enumerate(jobs)]

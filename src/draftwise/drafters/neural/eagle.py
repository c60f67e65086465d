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
from ...models.heads.eagle import Eagle, PEagle
from ...models.heads.mtp import Mtp
from ...models.heads.pairs import PairModel
from ...models.runner import ModelRunner, PassInput
from ...models.runner.hidden_states import Source
from ...models.runner.traits import Traits
from ...models.weights.timing import WIDTHS
from .chains import Chain, Drift, draft_at_once
from .heads import MISS, HeadDrafter, later
from .trees import draft_trees_at_once

LONG = 16  # from this many pending pairs a row is prefilled in a pass of its own
Texts = Sequence[Sequence[int]]


class PairDrafter(HeadDrafter):
    """Reads pairs of a hidden state of the target and the token after it, in step with the committed text.

    `mask` is the token and the features, shape (1, layers * target width), of pairs that are read after the
    known ones by a head that drafts in parallel.
    """

    hidden_states = True  # for stop rules that read them
    mask: tuple[int, Tensor] | None = None

    def __init__(self, head: Eagle | Mtp, target: Source, **options: Any) -> None:
        super().__init__(target, head.layers_read, **options)
        self.module, self.ids = head, head.ids
        # Rotary positions and full attention.
        self.runner = ModelRunner(PairModel(head), traits=Traits())
        self.chunk = 96 if self.runner.device.type == "cpu" else 2048  # bounds the memory of long catch-ups

    @property
    def pass_kind(self) -> str:
        """How passes are run at present."""
        return self.runner.executor.kind

    @property
    def setup_seconds(self) -> float:
        """Seconds of work that is done once, such as compiling passes: no price of a draft."""
        return self.runner.setup_seconds

    def close(self, request: Request) -> None:
        """Free the request's row."""
        self.runner.close(request.id)

    def seat(self, whole: Request, view: Request) -> None:
        """Let a request begin with what is held of another one, whose text begins alike."""
        super().seat(whole, view)
        self.runner.open(view.id)
        row, other = map(self.runner.request_ids.index, (view.id, whole.id))
        self.runner.share(row, other, min(len(view.tokens) - 2, self.runner.cached_lengths[other]))

    def _catch_up(self, requests: Sequence[Request], ahead: int = 0) -> tuple[Tensor, Tensor, list[int]]:
        """Read every pair for which the target's state is known, and `ahead` pairs of the mask after it.

        Returns the logits after the last one and the mask's, shape (requests, 1 + ahead, vocabulary), the
        states there, shape (requests, 1 + ahead, width), and each request's row.
        """
        ends = [len(request.tokens) - 1 for request in requests]
        read = self._read(requests, [(end - 1, end) for end in ends], ahead)
        logits, states = (torch.stack(part) for part in zip(*read, strict=True))
        return logits, states, [self.runner.request_ids.index(request.id) for request in requests]

    def _read(
        self, requests: Sequence[Request], spans: Sequence[tuple[int, int]], ahead: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """Read each request's pairs up to the end of its span, and `ahead` pairs of the mask.

        Pair i is the state of token i and token i + 1. Returns the logits after the pairs of each span and of
        the mask, shape (pairs, vocabulary), and the head's states.
        """
        masks = [self.mask[0]] * ahead if self.mask else []
        for request in requests:
            if request.id not in self.runner.request_ids:
                self.runner.open(request.id)
        rows, cached = self.runner.move_to_front([r.id for r in requests]), self.runner.cached_lengths
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

    def __init__(self, head: Eagle | Mtp, target: Source, **options: Any) -> None:
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
        requests = [job.request for job in jobs]
        logits, self.last, rows = self._catch_up(requests)

        def step(tokens: Texts, above: Texts, parents: Texts | None) -> tuple[Tensor, Tensor | None]:
            return self._step(rows, tokens, above, parents), self.last

        drafts = self._trees_at_once(jobs, logits, rows)
        if drafts is None:
            drafts = self._draft_by_steps(jobs, logits, self.last, step)
        for request, row in zip(requests, rows, strict=True):
            # Later pairs hold states of the head's own.
            self.runner.cached_lengths[row] = len(request.tokens) - 1
        return drafts

    def _trees_at_once(self, jobs: Sequence[Job], logits: Tensor, rows: Sequence[int]) -> list[Draft] | None:
        """Draft trees without reading the device between their depths, where the executor can."""
        if not self._is_tree(jobs[0]) or not self.runner.executor.drafts:
            return None
        order = sorted(range(len(jobs)), key=rows.__getitem__)
        trees = draft_trees_at_once(
            self.runner,
            [jobs[i] for i in order],
            logits[order, 0],
            self.last[order, 0],
            self.ids,
            top=self.top,
            gain=self.gain,
        )
        return None if trees is None else [trees[order.index(i)] for i in range(len(jobs))]

    def _extend_at_once(self, chains: Sequence[Chain], logits: Tensor) -> bool:
        """Draft several tokens without reading the device between them, where the executor can."""
        if not self.runner.executor.drafts:
            return False
        places = [self.runner.request_ids.index(chain.job.request.id) for chain in chains]
        order = sorted(range(len(chains)), key=places.__getitem__)
        output = draft_at_once(
            self.runner,
            [chains[i] for i in order],
            torch.stack([logits[i] for i in order]),
            vocab_size=self.vocab_size,
            size=self.vocab_size,
            sample=self.sample,
            states=torch.stack([self.last[i, 0] for i in order]),
            ids=self.ids,
        )
        if output is None or output.states is None:
            return False
        self.last = torch.stack([output.states[row] for row in places])[:, None]
        return True

    def _step(self, rows: Sequence[int], tokens: Texts, above: Texts, parents: Texts | None) -> Tensor:
        """Read drafted tokens, each with the head's own state of its parent."""
        texts: list[Sequence[int]] = [()] * len(rows)
        widest = max(map(len, tokens))
        states = self.runner.blank_states(len(rows), widest)
        for i, row in enumerate(rows):
            texts[row] = tokens[i]
            if tokens[i]:
                # A list of indices is copied to the device, and a GPU's host would wait for that.
                at = slice(above[i][0], above[i][0] + 1) if len(above[i]) == 1 else above[i]
                states[row, : len(tokens[i])] = self.last[i, at]
        trees = {row: tree for row, tree in zip(rows, parents, strict=True) if tree} if parents else None
        output = self.runner.forward(PassInput(0, texts, widest, parents=trees, states=states))
        self.last = output.hidden_states[-1][rows]
        return self._whole(output.logits[rows])


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
        """Draft from one pass over the new pairs and those of the mask."""
        length = max(job.length for job in jobs)
        length = min(length, self.longest) if self.longest else length
        logits, states, rows = self._catch_up([job.request for job in jobs], ahead=length - 1)
        for job, row in zip(jobs, rows, strict=True):
            self.runner.cached_lengths[row] = len(job.request.tokens) - 1  # the mask's pairs are not text
        return [self._draft_row(job, logits[i], states[i]) for i, job in enumerate(jobs)]

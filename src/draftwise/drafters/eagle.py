"""EAGLE: a head of one layer that goes on from the target's hidden states, as a chain or as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..features import Source
from ..heads.eagle import Eagle, load_eagle
from ..roles import GradeJob
from ..rows import Rows
from ..sampling import likeliest
from ..stops import needs
from ..types import Draft, Grade, Job, Request
from .chains import Chain, grades
from .trees import Tree

LONG = 16  # pending pairs from which a row catches up in a pass of its own


class Pairs:
    """A head as `Rows` asks for a model: `given` are the states to read beside the tokens of the next pass,
    shape (rows, length, width), and `states` those that the latest pass made of them."""

    def __init__(self, head: Eagle) -> None:
        self.head, self.config = head, head.config
        self.weight: Tensor = next(head.parameters())
        self.dtype, self.ids = self.weight.dtype, head.ids
        self.given = self.states = self.weight.new_empty(0)

    def get_input_embeddings(self) -> nn.Module | SimpleNamespace:
        """Something whose weight is where the head is."""
        return SimpleNamespace(weight=self.weight)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Any,
        use_cache: bool,
        logits_to_keep: int,
    ) -> SimpleNamespace:
        """Logits over the target's vocabulary at the last positions, -inf for what is never drafted."""
        self.states = self.head(
            input_ids,
            self.given,
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
        )
        logits = self.head.logits(self.states[:, -logits_to_keep:])
        if self.ids is not None:
            whole = logits.new_full((*logits.shape[:-1], self.head.vocab_size), -inf)
            logits = whole.index_copy_(-1, self.ids, logits)
        return SimpleNamespace(logits=logits)

    __call__ = forward


class EagleDrafter:
    """Drafts from the target's hidden states with a published EAGLE or EAGLE-3 head.

    With an arm of width 1 it drafts a chain, sampled where the request samples unless `sample` is off. A
    wider arm gets EAGLE-2's tree of at most length * width picked nodes: each depth reads the `top` best and
    tries `top` tokens after each; with `gain` it grows, as OPT-Tree does, only while the expected number
    accepted grows by more than that. Before the target has read a prompt there are no states to draft from:
    the first round is plain decoding.
    """

    hidden_states = True  # for stop rules that read them

    def __init__(
        self, head: Eagle, target: Source, *, sample: bool = True, top: int = 8, gain: float = 0.0
    ) -> None:
        if top < 1 or gain < 0:
            raise UserError(f"top={top}&gain={gain}: give top 1 or more and gain 0 or more")
        self.head, self.vocab_size = head, target.vocab_size
        self.features = target.features(head.layers_read)
        self.model = Pairs(head)
        self.rows = Rows(self.model)
        self.rows.max_length = 1 << 30  # rotary positions have no end of their own
        self.sample, self.top, self.gain = sample, top, gain
        self.chunk = 96 if self.rows.device.type == "cpu" else 2048  # bounds the memory of long catch-ups

    def hint(self, request: Request) -> float:
        """1 where the target has read the text, so that there is something to go on from."""
        return float(self._ready(request))

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing yet: what the target has read is read here when a draft is wanted."""

    def close(self, request: Request) -> None:
        """Free the request's row."""
        self.rows.close(request.id)

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain or tree per job; one without states to go on from gets an empty draft."""
        ready = [i for i, job in enumerate(jobs) if self._ready(job.request)]
        drafts = [Draft()] * len(jobs)
        for wide, make in ((False, self._chains), (True, self._trees)):
            which = [i for i in ready if (jobs[i].width > 1) == wide]
            if which:
                for i, draft in zip(which, make([jobs[i] for i in which]), strict=True):
                    drafts[i] = draft
        return drafts

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade per committed token, from one pass over the target's own states.

        A text's first two tokens cannot be guessed: there is no state before them.
        """
        blind = [max(0, 2 - job.start) for job in jobs]
        spans = [(job.start + n - 2, len(job.request.tokens) - 2) for job, n in zip(jobs, blind, strict=True)]
        some = [i for i, (first, end) in enumerate(spans) if first < end]
        read = self._read([jobs[i].request for i in some], [spans[i] for i in some]) if some else []
        found = dict(zip(some, read, strict=True))
        made = []
        for i, (job, n) in enumerate(zip(jobs, blind, strict=True)):
            if i not in found:
                made.append([Grade(0.0, 0.0)] * (len(job.request.tokens) - job.start))
                continue
            logits, states = found[i]
            laws = None if job.laws is None else job.laws[n:]
            rest = replace(job, start=job.start + n, probs=job.probs[n:], laws=laws)
            seen = grades(rest, logits, states, vocab_size=self.vocab_size, sample=self.sample)
            made.append([Grade(0.0, 0.0)] * n + seen)
        return made

    def _ready(self, request: Request) -> bool:
        """Whether the target has read all of the text but its last token, of two at least."""
        return 1 < len(request.tokens) <= self.features.held(request.id) + 1

    def _chains(self, jobs: Sequence[Job]) -> list[Draft]:
        chains = [Chain(job, needs(job.stops)) for job in jobs]
        logits, states, rows = self._catch_up([job.request for job in jobs])
        while True:
            picks = likeliest(logits)
            for i, chain in enumerate(chains):
                if not chain.done:
                    chain.extend(
                        logits[i], picks[i], states[i], vocab_size=self.vocab_size, sample=self.sample
                    )
            if all(chain.done for chain in chains):
                break
            texts = [list[int]()] * len(jobs)
            self.model.given = states.new_empty(len(jobs), 1, states.shape[1])
            for i, row in enumerate(rows):
                texts[row], self.model.given[row, 0] = chains[i].tokens[-1:], states[i]
            logits = self.rows.feed(0, texts, 1)[rows, 0]
            states = self.model.states[rows, 0]
        self._rewind(jobs, rows)
        return [chain.draft for chain in chains]

    def _trees(self, jobs: Sequence[Job]) -> list[Draft]:
        trees = [Tree(job, self.top, self.gain) for job in jobs]
        logits, states, rows = self._catch_up([job.request for job in jobs])
        logits, states = logits[:, None], states[:, None]
        while True:
            for i, tree in enumerate(trees):
                if not tree.done:
                    tree.grow(logits[i, : len(tree.frontier)])
            if all(tree.done for tree in trees):
                break
            texts: list[list[int]] = [[]] * len(jobs)
            kin: dict[int, list[int]] = {}
            widest = max(len(tree.frontier) for tree in trees if not tree.done)
            given = states.new_zeros(len(jobs), widest, states.shape[2])
            for i, (tree, row) in enumerate(zip(trees, rows, strict=True)):
                if not tree.done:
                    texts[row], kin[row] = tree.follow()
                    given[row, : len(tree.above)] = states[i, tree.above]
            self.model.given = given
            logits = self.rows.feed(0, texts, widest, trees=kin)[rows]
            states = self.model.states[rows]
        self._rewind(jobs, rows)
        return [tree.draft() for tree in trees]

    def _rewind(self, jobs: Sequence[Job], rows: Sequence[int]) -> None:
        """Forget the pairs that hold states of the head's own."""
        for job, row in zip(jobs, rows, strict=True):
            self.rows.held[row] = len(job.request.tokens) - 1

    def _catch_up(self, requests: Sequence[Request]) -> tuple[Tensor, Tensor, list[int]]:
        """Read every pair that the target knows the state of.

        Returns the logits after the last one, shape (requests, vocabulary), the states there, shape
        (requests, width), and each request's row.
        """
        ends = [len(request.tokens) - 1 for request in requests]
        read = self._read(requests, [(end - 1, end) for end in ends])
        logits, states = (torch.cat(part) for part in zip(*read, strict=True))
        return logits, states, [self.rows.keys.index(request.id) for request in requests]

    def _read(
        self, requests: Sequence[Request], spans: Sequence[tuple[int, int]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Read each request's pairs up to the end of its span, where pair i is the state of token i and token
        i + 1.

        Returns the logits after the pairs of each span, shape (pairs, vocabulary), and the head's states.
        """
        for request in requests:
            if request.id not in self.rows.keys:
                self.rows.open(request.id)
        rows, held = self.rows.front([request.id for request in requests]), self.rows.held
        slots = max(len(request.tokens) + request.room for request in requests)
        texts: list[list[int]] = [[]] * len(rows)
        for row, request, (first, end) in zip(rows, requests, spans, strict=True):
            held[row] = min(held[row], first)
            while first - held[row] > LONG:
                upto = min(held[row] + self.chunk, first)
                self._give([(row, request, upto)], 1)
                self.rows.feed(row, [request.tokens[held[row] + 1 : upto + 1]], 1, slots=slots)
            texts[row] = request.tokens[held[row] + 1 : end + 1]
        widths = [len(texts[row]) for row in rows]
        keep = max(widths) - min(w - (b - a) for w, (a, b) in zip(widths, spans, strict=True))
        self._give([(row, r, end) for row, r, (_, end) in zip(rows, requests, spans, strict=True)], len(rows))
        logits = self.rows.feed(0, texts, keep, slots=slots)
        states = self.model.states[:, -keep:]
        ends = [keep - max(widths) + w for w in widths]
        return [
            (logits[row, end - (b - a) : end], states[row, end - (b - a) : end])
            for row, end, (a, b) in zip(rows, ends, spans, strict=True)
        ]

    def _give(self, wanted: Sequence[tuple[int, Request, int]], n: int) -> None:
        """Lay out the states of each row's pairs from what it holds up to an end, in a batch of `n` rows."""
        held = self.rows.held
        parts = [self.features.of(request.id, held[row], end) for row, request, end in wanted]
        widest = max(map(len, parts))
        given = self.model.weight.new_zeros(n, widest, self.head.config.hidden_size)
        for (row, _, _), part in zip(wanted, parts, strict=True):
            given[row if n > 1 else 0, : len(part)] = self.head.read(part.to(given.device, given.dtype))
        self.model.given = given


def eagle(path: str, target: Source, *, sample: bool = True, top: int = 8, gain: float = 0.0) -> EagleDrafter:
    """A published EAGLE or EAGLE-3 head for this target, as a chain or, with wider arms, as a tree."""
    head = load_eagle(path, target.rows.model)
    return EagleDrafter(head, target, sample=sample, top=top, gain=gain)

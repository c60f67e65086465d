"""EAGLE: a head of one layer that continues from the target's hidden states, as a chain or as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob
from ...errors import UserError
from ...models.heads.eagle import Eagle, load_eagle
from ...models.hidden_states import Source
from ...models.runner import Rows
from ...models.traits import Traits
from .chains import Drift, draft_chains, grades
from .trees import draft_trees

Texts = Sequence[Sequence[int]]
Places = Sequence[Sequence[int]]
Kin = Sequence[Sequence[int]] | None

LONG = 16  # from this many pending pairs a row is prefilled in a pass of its own


class Pairs:
    """A head with the interface that `Rows` needs of a model: `given` are the states to read beside the
    tokens of the next pass, shape (rows, length, width), and `states` the head's output states of the latest
    pass."""

    def __init__(self, head: Eagle) -> None:
        self.head, self.config = head, head.config
        self.weight = next(head.parameters()).new_empty(0)  # the head's device and dtype
        self.dtype, self.ids = self.weight.dtype, head.ids
        self.given = self.states = self.weight.new_empty(0)

    def get_input_embeddings(self) -> nn.Module | SimpleNamespace:
        """A module whose weight is on the head's device."""
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
        """Logits over the target's vocabulary at the last positions, -inf for tokens outside the draft
        vocabulary."""
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

    With `width` 1 it drafts a chain, sampled if the request samples, unless `sample` is off. With more, or a
    wider arm, it drafts EAGLE-2's tree of at most length * width picked nodes: at each depth it expands the
    `top` best nodes by `top` tokens each. With `gain` it grows, as in OPT-Tree, only while the expected
    number of accepted tokens grows by more than that. Before the target has prefilled a prompt there are no
    states to draft from: the first round is plain decoding.
    """

    hidden_states = True  # for stop rules that read them

    def __init__(
        self,
        head: Eagle,
        target: Source,
        *,
        width: int = 1,
        sample: bool = True,
        top: int = 8,
        gain: float = 0.0,
    ) -> None:
        if min(width, top) < 1 or gain < 0:
            said = f"width={width}&top={top}&gain={gain}"
            raise UserError(f"{said}: give width and top 1 or more and gain 0 or more")
        self.module, self.vocab_size = head, target.vocab_size
        self.features = target.features(head.layers_read)
        self.model = Pairs(head)
        self.rows = Rows(self.model, traits=Traits())  # rotary positions and full attention
        self.branches, self.sample, self.top, self.gain = width, sample, top, gain
        self.drift = Drift()
        self.last = self.model.states  # states after the latest drafting step, by job
        self.chunk = 96 if self.rows.device.type == "cpu" else 2048  # bounds the memory of long catch-ups

    def hint(self, request: Request) -> float:
        """1 if the target has read the text, so that there is a state to continue from."""
        return float(self.ready(request))

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing yet: new states are read when a draft is requested."""

    def close(self, request: Request) -> None:
        """Free the request's row."""
        self.rows.close(request.id)

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain or tree per job; an empty draft if there are no states to continue from."""
        ready = [i for i, job in enumerate(jobs) if self.ready(job.request)]
        drafts = [Draft()] * len(jobs)
        jobs = [replace(job, width=max(job.width, self.branches)) for job in jobs]
        for wide in (False, True):
            which = [i for i in ready if (jobs[i].width > 1) == wide]
            if which:
                for i, draft in zip(which, self._draft([jobs[i] for i in which]), strict=True):
                    drafts[i] = draft
        return drafts

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade per committed token, from one pass over the target's own states.

        A draft continues from the head's own states, which drift: grades of its later tokens are lowered by
        the factors measured on its own drafts (`Drift`). A text's first two tokens cannot be predicted, since
        there is no state before them.
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
            distributions = None if job.distributions is None else job.distributions[n:]
            rest = replace(job, start=job.start + n, probs=job.probs[n:], distributions=distributions)
            seen = grades(rest, logits, states, vocab_size=self.vocab_size, sample=self.sample)
            if not n:
                self.drift.learn(job, seen, vocab_size=self.vocab_size, sample=self.sample)
            made.append([Grade(0.0, 0.0)] * n + seen)
        return [[self.drift.applied(grade) for grade in mine] for mine in made]

    def ready(self, request: Request) -> bool:
        """Whether the target has read all of the text but its last token, and at least one token."""
        return 1 < len(request.tokens) <= self.features.held(request.id) + 1

    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Chains or trees for jobs that are ready; the drafted pairs are rolled back afterwards."""
        requests = [job.request for job in jobs]
        logits, self.last, rows = self._catch_up(requests)

        def step(tokens: Texts, above: Places, kin: Kin) -> tuple[Tensor, Tensor | None]:
            return self._step(rows, tokens, above, kin), self.last

        if jobs[0].width > 1:
            drafts = draft_trees(jobs, logits, step, top=self.top, gain=self.gain)
        else:
            size, sample = self.vocab_size, self.sample
            drafts = draft_chains(jobs, logits, self.last, step, vocab_size=size, sample=sample)
        for request, row in zip(requests, rows, strict=True):
            self.rows.held[row] = len(request.tokens) - 1  # later pairs hold states of the head's own
        return drafts

    def _step(self, rows: Sequence[int], tokens: Texts, above: Places, kin: Kin) -> Tensor:
        """Read drafted tokens, each with the head's own state of its parent."""
        texts: list[Sequence[int]] = [()] * len(rows)
        widest = max(map(len, tokens))
        given = self.last.new_zeros(len(rows), widest, self.last.shape[2])
        for i, row in enumerate(rows):
            texts[row] = tokens[i]
            if tokens[i]:
                given[row, : len(tokens[i])] = self.last[i, above[i]]
        self.model.given = given
        trees = {row: parents for row, parents in zip(rows, kin, strict=True) if parents} if kin else None
        logits = self.rows.feed(0, texts, widest, trees=trees)[rows]
        self.last = self.model.states[rows]
        return logits

    def _catch_up(self, requests: Sequence[Request]) -> tuple[Tensor, Tensor, list[int]]:
        """Read every pair for which the target's state is known.

        Returns the logits after the last one, shape (requests, 1, vocabulary), the states there, shape
        (requests, 1, width), and each request's row.
        """
        ends = [len(request.tokens) - 1 for request in requests]
        read = self._read(requests, [(end - 1, end) for end in ends])
        logits, states = (torch.stack(part) for part in zip(*read, strict=True))
        return logits, states, [self.rows.keys.index(request.id) for request in requests]

    def _read(
        self, requests: Sequence[Request], spans: Sequence[tuple[int, int]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Read each request's pairs up to the end of its span; pair i is the state of token i and token i +
        1.

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
        """Set the states of each row's next pairs, up to an end, in a batch of `n` rows."""
        held = self.rows.held
        parts = [self.features.of(request.id, held[row], end) for row, request, end in wanted]
        widest = max(map(len, parts))
        given = self.model.weight.new_zeros(n, widest, self.module.config.hidden_size)
        for (row, _, _), part in zip(wanted, parts, strict=True):
            given[row if n > 1 else 0, : len(part)] = self.module.read(part.to(given.device, given.dtype))
        self.model.given = given


def eagle(
    path: str,
    target: Source,
    *,
    width: Annotated[int, "1 drafts a chain; more, a tree of at most length * width nodes"] = 1,
    sample: Annotated[bool, "draw drafts where the request draws; false: always the most probable"] = True,
    top: Annotated[int, "tokens tried after each node of a tree"] = 8,
    gain: Annotated[float, "least gain in accepted tokens per added node; 0: no limit"] = 0.0,
) -> EagleDrafter:
    """Drafts from the target's hidden states with a published EAGLE or EAGLE-3 head, in chains or trees.

    Source: EAGLE, EAGLE-2 and EAGLE-3 (arXiv 2401.15077, 2406.16858, 2503.01840).
    """
    head = load_eagle(path, target.rows.model)
    return EagleDrafter(head, target, width=width, sample=sample, top=top, gain=gain)

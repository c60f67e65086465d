"""EAGLE: a head of one layer that continues from the target's hidden states, as a chain or as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...core.constraint import constraint_of
from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.roles import GradeJob
from ...models.heads.eagle import Eagle
from ...models.heads.mtp import Mtp
from ...models.runner import PassInput
from ...models.runner.hidden_states import Source
from .chains import Drift, draft_chains, grades
from .pairs import PairReader
from .trees import checked, draft_trees

Texts = Sequence[Sequence[int]]
Places = Sequence[Sequence[int]]
Kin = Sequence[Sequence[int]] | None


class EagleDrafter(PairReader):
    """Drafts from the target's hidden states with a published EAGLE or EAGLE-3 head.

    With `width` 1 it drafts a chain, sampled if the request samples, unless `sample` is off. With more, or a
    wider arm, it drafts EAGLE-2's tree of at most length * width picked nodes: at each depth it expands the
    `top` best nodes by `top` tokens each. With `gain` it grows, as in OPT-Tree, only while the expected
    number of accepted tokens grows by more than that. Before the target has prefilled a prompt there are no
    states to draft from: the first round is plain decoding.
    """

    hidden_states = True  # for stop rules that read them
    guided = True

    def __init__(
        self,
        head: Eagle | Mtp,
        target: Source,
        *,
        width: int = 1,
        sample: bool = True,
        top: int = 8,
        gain: float = 0.0,
    ) -> None:
        checked(width, top, gain)
        super().__init__(head, target)
        self.branches, self.sample, self.top, self.gain = width, sample, top, gain
        self.drift = Drift()
        self.last = self.model.states  # states after the latest drafting step, by job

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
            constraint, size = constraint_of(rest.request, rest.start), self.vocab_size
            seen = grades(rest, logits, states, vocab_size=size, sample=self.sample, constraint=constraint)
            if not n:
                self.drift.learn(job, seen, vocab_size=self.vocab_size, sample=self.sample)
            made.append([Grade(0.0, 0.0)] * n + seen)
        return [[self.drift.applied(grade) for grade in mine] for mine in made]

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
            self.runner.cached_lengths[row] = (
                len(request.tokens) - 1
            )  # later pairs hold states of the head's own
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
        logits = self.runner.forward(PassInput(0, texts, widest, parents=trees)).logits[rows]
        self.last = self.model.states[rows]
        return logits

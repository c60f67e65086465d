"""Drafting from the target's hidden states: what all such drafters share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...core.constraint import constraint_of
from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import Drafter, GradeJob
from ...models.runner.hidden_states import Source
from ...models.weights.timing import DRAFTING
from .chains import Chain, Step, draft_chains, extend, grades
from .trees import Tree, draft_trees

MISS = Grade(0.0, 0.0)
RowAfter = Callable[[int, Sequence[int]], Tensor]
"""Returns the logits of a place of a draft after the draft's tokens before it, shape (vocabulary,)."""


class HeadDrafter(Drafter):
    """Drafts chains or trees from hidden states of the target, once it has read the text.

    With `width` 1 it drafts a chain, sampled if the request samples, unless `sample` is off. With more it
    drafts EAGLE-2's tree of at most length * width deterministic nodes: at each depth it expands the `top`
    best nodes by `top` tokens each. A wider arm gets such a tree, too, or, if the request samples, a sampled
    chain with the most likely siblings of each of its tokens. With `gain` a tree grows, as in OPT-Tree, only
    while the expected number of accepted tokens grows by more than that. Before the target has prefilled a
    prompt there are no states to draft from: the first round is plain decoding.
    """

    guided = True
    widths = DRAFTING  # tokens per pass, for which its weights are packed

    def __init__(
        self,
        target: Source,
        layers: Sequence[int],
        *,
        width: int = 1,
        sample: bool = True,
        top: int = 8,
        gain: float = 0.0,
    ) -> None:
        self.vocab_size, self.features = target.vocab_size, target.hidden_states(layers)
        self.branches, self.sample, self.top, self.gain = width, sample, top, gain

    def drafts_trees(self) -> bool:
        """Return whether a wider arm gets a tree."""
        return self.branches == 1

    def drafts_siblings(self) -> bool:
        """Return whether, where the request samples, it gets a chain with siblings."""
        return self.branches == 1 and self.sample

    def ready(self, request: Request) -> bool:
        """Return if the target has read all of the text but its last token, and at least one token."""
        return 1 < len(request.tokens) <= self.features.length(request.id) + 1

    def hint(self, request: Request) -> float:
        return float(self.ready(request))

    def seat(self, whole: Request, view: Request) -> None:
        """Let a request begin with what is held of another one, whose text begins alike."""
        if self.features.length(view.id) < len(view.tokens) - 1:
            self.features.share(view.id, whole.id, len(view.tokens) - 1)

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft one chain or tree per job; an empty draft if there are no states to draft from."""
        drafts = [Draft()] * len(jobs)
        jobs = [replace(job, width=max(job.width, self.branches)) for job in jobs]
        for tree in (False, True):
            which = [
                i for i, job in enumerate(jobs) if self._is_tree(job) == tree and self.ready(job.request)
            ]
            if which:
                rows = self._rows_of([jobs[i].request for i in which])
                which = [i for _, i in sorted(zip(rows, which, strict=True))]
                for i, draft in zip(which, self._draft([jobs[i] for i in which]), strict=True):
                    drafts[i] = draft
        return drafts

    def _rows_of(self, requests: Sequence[Request]) -> Sequence[int]:
        """Move the rows of these requests to the front of a cache, if there is one, and return them."""
        return range(len(requests))

    def _is_tree(self, job: Job) -> bool:
        """Return whether a job gets a tree of picked nodes, not a chain."""
        is_sampled = self.sample and not job.deterministic and not job.request.sampling.greedy
        return job.width > 1 and (self.branches > 1 or not is_sampled)

    @abstractmethod
    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft for jobs that are ready, by row, all of them trees or all of them chains."""

    def _draft_by_steps(
        self, jobs: Sequence[Job], logits: Tensor, states: Tensor | None, step: Step
    ) -> list[Draft]:
        """Draft a depth a step; `logits` (jobs, 1, vocabulary) and `states` are those after the texts."""
        if self._is_tree(jobs[0]):
            return draft_trees(jobs, logits, step, top=self.top, gain=self.gain)
        size, sample, at_once = self.vocab_size, self.sample, self._extend_at_once
        return draft_chains(jobs, logits, states, step, vocab_size=size, sample=sample, at_once=at_once)

    def _extend_at_once(self, chains: Sequence[Chain], logits: Tensor) -> bool:
        """Draft several tokens of all chains without a read between them; False if that is not possible."""
        return False

    def _draft_at_once(self, job: Job, row_after: RowAfter, places: int, states: Tensor | None) -> Draft:
        """Draft from at most so many places, whose logits are all known.

        `states` (places, width) are the hidden states that they come from. A tree has the most likely paths,
        as if the places were independent.
        """
        job = replace(job, length=min(job.length, places))
        if self._is_tree(job):
            tree = Tree(job, self.top, self.gain)
            while not tree.done:
                paths = [tree.path(node) for node in tree.frontier]
                tree.grow(torch.stack([row_after(tree.depth, path) for path in paths]))
            return tree.draft()
        chain = Chain(job, self.vocab_size, self.sample)
        for place in range(job.length):
            row = row_after(place, chain.tokens)
            extend([chain], row[None], None if states is None else states[place : place + 1])
            if chain.done:
                break
        return chain.draft

    def _draft_row(self, job: Job, logits: Tensor, states: Tensor) -> Draft:
        """Draft from logits that do not depend on each other's tokens, shape (places, vocabulary)."""
        logits = logits[:, : self.vocab_size]
        return self._draft_at_once(job, lambda place, path: logits[place], len(logits), states)

    def _graded(self, job: GradeJob, logits: Tensor, states: Tensor | None) -> list[Grade]:
        """Return the grades of the job's tokens from the logits at these positions."""
        constraint, size = constraint_of(job.request, job.start), self.vocab_size
        return grades(job, logits, states, vocab_size=size, sample=self.sample, constraint=constraint)


def trees_by_row(parents: Sequence[Sequence[int]] | None) -> dict[int, Sequence[int]] | None:
    """Return the trees of a step (see `Step`) for a pass over the first rows; None for chains."""
    return {row: tree for row, tree in enumerate(parents) if tree} if parents else None


def later(job: GradeJob, n: int) -> GradeJob:
    """Return the job without its first `n` tokens."""
    distributions = None if job.distributions is None else job.distributions[n:]
    return replace(job, start=job.start + n, probs=job.probs[n:], distributions=distributions)

"""Medusa: several heads predict the next tokens at once from the target's last hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Annotated

import torch
from torch import Tensor

from ...core.constraint import constraint_of
from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob
from ...core.stops import needs
from ...errors import UserError
from ...models.heads.medusa import Medusa, load_medusa
from ...models.runner.hidden_states import Source
from .chains import Chain, grades, picks
from .rescore import TextGrams
from .trees import Tree, sparse

TREES = ("joint", "fixed")
CANDIDATES = 16  # tokens of each head that are rescored
# Accuracy of each rank, for the fixed tree; each later head has 0.8 times the accuracy.
RANKS = (0.55, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01)


class MedusaDrafter:
    """Drafts from the target's last hidden state with published Medusa heads, one pass for the whole draft.

    With `width` 1 it drafts a chain of every head's token, which is blockwise parallel decoding (arXiv
    1811.03115), sampled if the request samples, unless `sample` is off. With more, or a wider arm, it drafts
    a tree of at most length * width picked nodes: with `tree=joint` the most likely paths by the heads'
    probabilities, with `tree=fixed` Medusa's own, the same ranks in every round. With a `rescore` weight
    above 0, trigrams of the text rescore the heads' most likely tokens (R-BPD and R-Medusa, after arXiv
    2404.09221), and all tokens are picked. The first round of a text is plain decoding: there is no state.
    """

    guided = True

    def __init__(
        self,
        heads: Medusa,
        target: Source,
        *,
        width: int = 1,
        sample: bool = True,
        tree: str = "joint",
        top: int = 10,
        rescore: float = 0.0,
    ) -> None:
        if tree not in TREES:
            raise UserError(f"tree={tree}: choose from {', '.join(TREES)}")
        if min(width, top) < 1 or rescore < 0:
            said = f"width={width}&top={top}&rescore={rescore}"
            raise UserError(f"{said}: give width and top 1 or more and rescore 0 or more")
        self.module, self.vocab_size = heads, target.vocab_size
        self.features, self.device = target.hidden_states((-1,)), next(heads.parameters()).device
        self.sample, self.tree, self.top, self.weight = sample and not rescore, tree, top, rescore
        self.branches, self.longest = width, len(heads.medusa_head)
        self.texts: dict[int, TextGrams] = {}

    def ready(self, request: Request) -> bool:
        """Whether the target has read all of the text but its last token, and at least one token."""
        return 1 < len(request.tokens) <= self.features.length(request.id) + 1

    def hint(self, request: Request) -> float:
        """1 if there is a state to continue from."""
        return float(self.ready(request))

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Count the committed tokens, if trigrams are used."""
        if self.weight:
            self.texts.setdefault(request.id, TextGrams(self.vocab_size)).read(new)

    def close(self, request: Request) -> None:
        """Drop the text."""
        self.texts.pop(request.id, None)

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain or tree per job, at most one token per head; an empty one if there is no state."""
        ready = [i for i, job in enumerate(jobs) if self.ready(job.request)]
        drafts = [Draft()] * len(jobs)
        if ready:
            ends = [len(jobs[i].request.tokens) - 1 for i in ready]
            states = [
                self.features.of(jobs[i].request.id, n - 1, n) for i, n in zip(ready, ends, strict=True)
            ]
            logits = self.module(torch.cat(states).to(self.device))[..., : self.vocab_size]
            for place, i in enumerate(ready):
                drafts[i] = self._draft(jobs[i], logits[:, place])
        return drafts

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """One grade per committed token: of the first head, and of later heads from earlier states."""
        return [self._grade(job) for job in jobs]

    def _draft(self, job: Job, rows: Tensor) -> Draft:
        """A draft from the logits of every head, shape (heads, vocabulary)."""
        job = replace(job, length=min(job.length, self.longest), width=max(job.width, self.branches))
        if job.width > 1:
            return self._tree(job, rows)
        chain = Chain(job, needs(job.stops))
        for k in range(job.length):
            row = self._rescored(job.request, rows[k], chain.tokens)
            (pick,) = picks([chain], row[None], sample=self.sample)
            chain.extend(row, pick, None, vocab_size=self.vocab_size, sample=self.sample)
            if chain.done:
                break
        return chain.draft

    def _tree(self, job: Job, rows: Tensor) -> Draft:
        if self.tree == "fixed":
            return self._fixed(job, rows)
        tree = Tree(job, self.top)
        for k in range(job.length):
            paths = [tree.path(node) for node in tree.frontier]
            tree.grow(torch.stack([self._rescored(job.request, rows[k], path) for path in paths]))
            if tree.done:
                break
        return tree.draft()

    def _fixed(self, job: Job, rows: Tensor) -> Draft:
        """The same ranks of the heads' most likely tokens in every round."""
        wide = min(len(RANKS), rows.shape[-1])
        fades = [[p * 0.8**k for p in RANKS[:wide]] for k in range(job.length)]
        paths = sparse(fades, job.length * job.width)
        where = {path: place for place, path in enumerate(paths)} | {(): -1}
        best: list[list[int]] = rows[: job.length].topk(wide).indices.tolist()
        tokens = tuple(best[len(path) - 1][path[-1]] for path in paths)
        return Draft(tokens, tuple(where[path[:-1]] for path in paths))

    def _rescored(self, request: Request, row: Tensor, path: Sequence[int]) -> Tensor:
        """Rescored logits of one head after a path, shape (vocabulary,); -inf for all but its most likely
        tokens."""
        if not self.weight:
            return row
        best = row.float().log_softmax(-1).topk(min(CANDIDATES, len(row)))
        known = self.texts[request.id].logs(path, best.indices.tolist())
        scores = best.values + self.weight * best.values.new_tensor(known)
        return scores.new_full((len(row),), -inf).index_copy_(0, best.indices, scores)

    def _grade(self, job: GradeJob) -> list[Grade]:
        """Head k predicted token j from the state of token j - k - 2, as if a round had begun k tokens before
        it."""
        tokens = job.request.tokens
        first = max(0, job.start - self.longest - 1)
        states = self.features.of(job.request.id, first, len(tokens) - 2).to(self.device)
        logits = self.module(states)[..., : self.vocab_size]
        found: list[list[Grade]] = []
        for k in range(self.longest):
            blind = min(max(0, k + 2 - job.start), len(tokens) - job.start)
            distributions = None if job.distributions is None else job.distributions[blind:]
            rest = replace(job, start=job.start + blind, probs=job.probs[blind:], distributions=distributions)
            rows = logits[k, rest.start - k - 2 - first : len(tokens) - k - 2 - first]
            seen = [MISS] * blind
            if len(rows):
                constraint, size = constraint_of(rest.request, rest.start), self.vocab_size
                seen += grades(rest, rows, None, vocab_size=size, sample=self.sample, constraint=constraint)
            found.append(seen)
        return [
            replace(by[0], deeper=(*((g.accept, g.overlap) for g in by[1:]), (0.0, 0.0)))
            for by in zip(*found, strict=True)
        ]


MISS = Grade(0.0, 0.0)


def medusa(
    path: str,
    target: Source,
    *,
    width: Annotated[int, "1 drafts a chain; more, a tree of at most length * width nodes"] = 1,
    sample: Annotated[bool, "draw drafts where the request draws; false: always the most probable"] = True,
    tree: Annotated[str, "joint: the most probable paths; fixed: the tree of the paper"] = "joint",
    top: Annotated[int, "tokens of each head that are considered"] = 10,
    rescore: Annotated[float, "weight of the text's trigrams in choosing among the heads' tokens"] = 0.0,
) -> MedusaDrafter:
    """Drafts from the target's last hidden state with published Medusa heads, in chains or trees.

    Source: Medusa (arXiv 2401.10774).
    """
    heads = load_medusa(path, target.runner.model)
    return MedusaDrafter(heads, target, width=width, sample=sample, tree=tree, top=top, rescore=rescore)

"""Medusa: several heads predict the next tokens at once from the target's last hidden state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from typing import Annotated

import torch
from torch import Tensor

from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import GradeJob
from ...errors import UserError
from ...models.heads.medusa import Medusa, load_medusa
from ...models.runner.hidden_states import Source
from ...registry import Within
from .heads import MISS, HeadDrafter, later
from .trees import sparse

TREES = ("joint", "fixed")
CANDIDATES = 16  # tokens of each head that are rescored
# Accuracy of each rank, for the fixed tree; each later head has 0.8 times the accuracy.
RANKS = (0.55, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01)
SHORTER = 0.5  # weight of the shorter context in counts of trigrams


class MedusaDrafter(HeadDrafter):
    """Drafts from the target's last hidden state with published Medusa heads, one pass for the whole draft.

    With `width` 1 it drafts a chain of every head's token, which is blockwise parallel decoding (arXiv
    1811.03115), sampled if the request samples, unless `sample` is off. With more, or a wider arm, it drafts
    a tree of at most length * width nodes: with `tree=joint` the most likely paths by the heads'
    probabilities, with `tree=fixed` Medusa's own, the same ranks in every round. With a `rescore` weight
    above 0, trigrams of the text rescore the heads' most likely tokens (R-BPD and R-Medusa, after arXiv
    2404.09221), and drafts are deterministic. The first round of a text is plain decoding: there is no state.
    """

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
        super().__init__(target, (-1,), width=width, sample=sample and not rescore, top=top)
        self.module, self.device = heads, next(heads.parameters()).device
        self.tree, self.weight, self.longest = tree, rescore, len(heads.medusa_head)
        self.texts: dict[int, TextGrams] = {}

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Count the committed tokens, if trigrams are used."""
        if self.weight:
            self.texts.setdefault(request.id, TextGrams(self.vocab_size)).read(new)

    def close(self, request: Request) -> None:
        self.texts.pop(request.id, None)

    @torch.inference_mode()
    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """Return one grade per committed token: of the first head, and of later heads from earlier states."""
        return [self._grade(job) for job in jobs]

    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft at most one token per head."""
        ends = [len(job.request.tokens) - 1 for job in jobs]
        states = [self.features.of(job.request.id, n - 1, n) for job, n in zip(jobs, ends, strict=True)]
        logits = self.module(torch.cat(states).to(self.device))[..., : self.vocab_size]
        return [self._draft_rows(job, logits[:, i]) for i, job in enumerate(jobs)]

    def _draft_rows(self, job: Job, rows: Tensor) -> Draft:
        """Draft from the logits of every head, shape (heads, vocabulary)."""
        if self._is_tree(job) and self.tree == "fixed":
            return self._fixed(replace(job, length=min(job.length, self.longest)), rows)
        return self._draft_at_once(
            job, lambda k, path: self._rescored(job.request, rows[k], path), self.longest, None
        )

    def _fixed(self, job: Job, rows: Tensor) -> Draft:
        """Draft the same ranks of the heads' most likely tokens in every round."""
        wide = min(len(RANKS), rows.shape[-1])
        fades = [[p * 0.8**k for p in RANKS[:wide]] for k in range(job.length)]
        paths = sparse(fades, job.length * job.width)
        where = {path: place for place, path in enumerate(paths)} | {(): -1}
        best: list[list[int]] = rows[: job.length].topk(wide).indices.tolist()
        tokens = tuple(best[len(path) - 1][path[-1]] for path in paths)
        return Draft(tokens, tuple(where[path[:-1]] for path in paths))

    def _rescored(self, request: Request, row: Tensor, path: Sequence[int]) -> Tensor:
        """Return one head's logits after a path; if rescored, -inf for all but its most likely tokens."""
        if not self.weight:
            return row
        best = row.float().log_softmax(-1).topk(min(CANDIDATES, len(row)))
        logs = self.texts[request.id].logs(path, best.indices.tolist())
        scores = best.values + self.weight * best.values.new_tensor(logs)
        return scores.new_full((len(row),), -inf).index_copy_(0, best.indices, scores)

    def _grade(self, job: GradeJob) -> list[Grade]:
        """Grade each head.

        Head k predicted token j from the state of token j - k - 2, as if a round had begun k tokens
        before it.
        """
        tokens = job.request.tokens
        first = max(0, job.start - self.longest - 1)
        states = self.features.of(job.request.id, first, len(tokens) - 2).to(self.device)
        logits = self.module(states)[..., : self.vocab_size]
        by_head: list[list[Grade]] = []
        for k in range(self.longest):
            blind = min(max(0, k + 2 - job.start), len(tokens) - job.start)
            rest = later(job, blind)
            rows = logits[k, rest.start - k - 2 - first : len(tokens) - k - 2 - first]
            by_head.append([MISS] * blind + (self._graded(rest, rows, None) if len(rows) else []))
        return [
            replace(of[0], deeper=(*((g.accept, g.overlap) for g in of[1:]), (0.0, 0.0)))
            for of in zip(*by_head, strict=True)
        ]


@dataclass(slots=True)
class TextGrams:
    """Trigrams of one text, interpolated with the shorter contexts (Jelinek and Mercer)."""

    vocab_size: int
    ones: Counter[int] = field(default_factory=Counter)
    twos: dict[int, Counter[int]] = field(default_factory=dict)
    threes: dict[tuple[int, int], Counter[int]] = field(default_factory=dict)
    tail: tuple[int, ...] = ()

    def read(self, new: Sequence[int]) -> None:
        for token in new:
            self.ones[token] += 1
            if self.tail:
                self.twos.setdefault(self.tail[-1], Counter())[token] += 1
            if len(self.tail) == 2:
                self.threes.setdefault((self.tail[0], self.tail[1]), Counter())[token] += 1
            self.tail = (*self.tail, token)[-2:]

    def logs(self, path: Sequence[int], candidates: Sequence[int]) -> list[float]:
        """Return log-probabilities of each candidate after the text and a drafted path."""
        last = (*self.tail, *path)[-2:]
        two = self.twos.get(last[-1], Counter()) if last else Counter[int]()
        three = self.threes.get((last[0], last[1]), Counter()) if len(last) == 2 else Counter[int]()
        totals = [counts.total() for counts in (self.ones, two, three)]
        logs = []
        for token in candidates:
            p = 1.0 / self.vocab_size
            for counts, total in zip((self.ones, two, three), totals, strict=True):
                p = (counts[token] + SHORTER * p) / (total + SHORTER)
            logs.append(log(p))
        return logs


def medusa(
    path: str,
    target: Source,
    *,
    width: Annotated[int, "1 drafts a chain; more, a tree of at most length * width nodes", Within(1)] = 1,
    sample: Annotated[bool, "sample drafts where the request samples; false: most probable tokens"] = True,
    tree: Annotated[str, "joint: the most probable paths; fixed: the tree of the paper"] = "joint",
    top: Annotated[int, "tokens of each head that are considered", Within(1)] = 10,
    rescore: Annotated[
        float, "weight of the text's trigrams in choosing among the heads' tokens", Within(0)
    ] = 0.0,
) -> MedusaDrafter:
    """Drafts from the target's last hidden state with published Medusa heads, in chains or trees.

    Source: Medusa (arXiv 2401.10774).
    """
    heads = load_medusa(path, target.runner.model)
    return MedusaDrafter(heads, target, width=width, sample=sample, tree=tree, top=top, rescore=rescore)

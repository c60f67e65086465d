"""Drafts whose tokens are all predicted in one pass, and the drafter with a P-EAGLE head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...core.stops import needs
from ...models.heads.eagle import PEagle
from ...models.runner.hidden_states import Source
from .chains import Chain, picks
from .pairs import PairReader
from .trees import Tree, checked


def draft_parallel(
    job: Job, rows: Tensor, states: Tensor, *, vocab_size: int, sample: bool, top: int, gain: float
) -> Draft:
    """A chain, or a tree for a wide job, from logits that do not depend on each other's tokens.

    `rows` (tokens, vocabulary) are the logits of each place of the draft, `states` (tokens, width) the hidden
    states that they come from. A tree has the most probable paths, as if the places were independent.
    """
    job = replace(job, length=min(job.length, len(rows)))
    if job.width > 1:
        tree = Tree(job, top, gain)
        while not tree.done:
            tree.grow(rows[tree.depth].expand(len(tree.frontier), -1))
        return tree.draft()
    chain = Chain(job, needs(job.stops))
    for place, row in enumerate(rows[: job.length]):
        (pick,) = picks([chain], row[None], sample=sample)
        chain.extend(row, pick, states[place], vocab_size=vocab_size, sample=sample)
        if chain.done:
            break
    return chain.draft


class ParallelDrafter(ABC):
    """Drafts all tokens of a text in one pass.

    With `width` 1 it drafts a chain, sampled if the request samples, unless `sample` is off; with more, or a
    wider arm, a tree of the `top` most probable tokens of each place, which grows only while the expected
    number of accepted tokens grows by more than `gain`. Before the target has prefilled a prompt there are no
    states to draft from.
    """

    hidden_states = True  # for stop rules that read them
    guided = True
    vocab_size: int

    def __init__(self, *, width: int, sample: bool, top: int, gain: float) -> None:
        checked(width, top, gain)
        self.branches, self.sample, self.top, self.gain = width, sample, top, gain

    @abstractmethod
    def ready(self, request: Request) -> bool:
        """Whether there are states to draft from."""

    @abstractmethod
    def places(self, requests: Sequence[Request], length: int) -> tuple[Tensor, Tensor]:
        """Logits of at least `length` places after each text, or of all that there are, shape (texts, places,
        vocabulary), and the hidden states that they come from, shape (texts, places, width)."""

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain or tree per job; an empty draft if there are no states to draft from."""
        drafts = [Draft()] * len(jobs)
        which = [i for i, job in enumerate(jobs) if self.ready(job.request)]
        if not which:
            return drafts
        logits, states = self.places([jobs[i].request for i in which], max(jobs[i].length for i in which))
        for place, i in enumerate(which):
            drafts[i] = draft_parallel(
                replace(jobs[i], width=max(jobs[i].width, self.branches)),
                logits[place, :, : self.vocab_size],
                states[place],
                vocab_size=self.vocab_size,
                sample=self.sample,
                top=self.top,
                gain=self.gain,
            )
        return drafts


class PEagleDrafter(PairReader, ParallelDrafter):
    """Drafts all tokens in one pass with a published P-EAGLE head.

    The known pairs are followed by pairs of the head's mask, one for each token after the first. It drafts no
    more tokens than the head was trained for.
    """

    def __init__(
        self,
        head: PEagle,
        target: Source,
        *,
        width: int = 1,
        sample: bool = True,
        top: int = 8,
        gain: float = 0.0,
    ) -> None:
        ParallelDrafter.__init__(self, width=width, sample=sample, top=top, gain=gain)
        PairReader.__init__(self, head, target)
        self.mask = (head.mask_token, head.mask_hidden.detach()[0])
        self.longest = head.longest

    def places(self, requests: Sequence[Request], length: int) -> tuple[Tensor, Tensor]:
        """One pass over the new pairs and those of the mask."""
        length = min(length, self.longest) if self.longest else length
        logits, states, rows = self._catch_up(requests, ahead=length - 1)
        for request, row in zip(requests, rows, strict=True):
            self.runner.cached_lengths[row] = len(request.tokens) - 1  # the mask's pairs are not text
        return logits, states

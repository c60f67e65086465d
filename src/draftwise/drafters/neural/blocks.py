"""Drafts in blocks: a head that reads the target's states and fills all places of a block at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...models.distributions import whole_vocabulary
from ...models.heads.dflash import DFlash
from ...models.runner.hidden_states import Source
from ...models.weights.timing import WIDTHS
from .heads import HeadDrafter

LEAST = 64  # initial number of positions in a text's keys and values; doubled when full


class DFlashDrafter(HeadDrafter):
    """Drafts a block in one pass with a published DFlash head.

    The whole block that the head was trained with is filled in each round, and the draft is its beginning.
    Keys and values of each text are kept until it is closed.
    """

    hidden_states = True  # for stop rules that read them
    widths = WIDTHS

    def __init__(self, head: DFlash, target: Source, **options: Any) -> None:
        super().__init__(target, head.layers_read, **options)
        self.module, self.weight = head, head.fc.weight
        self.contexts: dict[int, Tensor] = {}
        self.cached_lengths: dict[int, int] = {}
        self.chunk = 96 if self.weight.device.type == "cpu" else 2048  # bounds the memory of long catch-ups

    def close(self, request: Request) -> None:
        self.contexts.pop(request.id, None)
        self.cached_lengths.pop(request.id, None)

    def _draft(self, jobs: Sequence[Job]) -> list[Draft]:
        requests = [job.request for job in jobs]
        contexts = [self._context(request) for request in requests]
        ends = [len(request.tokens) - 1 for request in requests]
        if len(contexts) == 1:
            context = contexts[0][:, :, None]
        else:  # positions come first to be padded
            context = pad_sequence([one.movedim(3, 0) for one in contexts]).permute(2, 3, 1, 4, 0, 5)
        device, masks = self.weight.device, [self.module.mask_token] * (self.module.size - 1)
        tokens = torch.tensor([[request.tokens[-1], *masks] for request in requests], device=device)
        states = self.module(tokens, torch.tensor(ends, device=device), context)
        logits = whole_vocabulary(self.module.logits(states), self.module.ids, self.module.vocab_size)
        return [self._draft_row(job, logits[i], states[i]) for i, job in enumerate(jobs)]

    def _context(self, request: Request) -> Tensor:
        """Return keys and values up to the last token, shape (layers, 2, heads, positions, size)."""
        key, end = request.id, len(request.tokens) - 1
        start = self.cached_lengths.get(key, 0)
        while start < end:
            upto = min(start + self.chunk, end)
            new = self.module.context(self.features.of(key, start, upto).to(self.weight), start)
            old = self.contexts.get(key)
            if old is None or old.shape[3] < upto:
                larger = new.new_zeros((*new.shape[:3], max(LEAST, 2 * upto), new.shape[4]))
                if old is not None:
                    larger[..., :start, :] = old[..., :start, :]
                self.contexts[key] = larger
            self.contexts[key][..., start:upto, :] = new
            self.cached_lengths[key] = start = upto
        return self.contexts[key][..., :end, :]

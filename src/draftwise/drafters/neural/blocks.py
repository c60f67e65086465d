"""Drafts in blocks: a head that reads the target's states and fills all places of a block at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...core.request import Request
from ...models.heads.dflash import DFlash
from ...models.runner.hidden_states import Source
from .parallel import ParallelDrafter

LEAST = 64  # initial number of positions in a text's keys and values; doubled when full


class DFlashDrafter(ParallelDrafter):
    """Drafts a block in one pass with a published DFlash head.

    The whole block that the head was trained with is filled in each round, and the draft is its beginning.
    Keys and values of each text are kept until it is closed.
    """

    def __init__(
        self,
        head: DFlash,
        target: Source,
        *,
        width: int = 1,
        sample: bool = True,
        top: int = 8,
        gain: float = 0.0,
    ) -> None:
        super().__init__(width=width, sample=sample, top=top, gain=gain)
        self.module, self.vocab_size = head, target.vocab_size
        self.features = target.hidden_states(head.layers_read)
        self.weight, self.ids = head.fc.weight, head.ids
        self.kept: dict[int, Tensor] = {}
        self.held: dict[int, int] = {}
        self.chunk = 96 if self.weight.device.type == "cpu" else 2048  # bounds the memory of long catch-ups

    def hint(self, request: Request) -> float:
        """1 if the target has read the text, so that there are states to draft from."""
        return float(self.ready(request))

    def ready(self, request: Request) -> bool:
        """Whether the target has read all of the text but its last token, and at least one token."""
        return 1 < len(request.tokens) <= self.features.length(request.id) + 1

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing yet: new states are read when a draft is requested."""

    def close(self, request: Request) -> None:
        """Free the text's keys and values."""
        self.kept.pop(request.id, None)
        self.held.pop(request.id, None)

    def places(self, requests: Sequence[Request], length: int) -> tuple[Tensor, Tensor]:
        """All places of the block."""
        states = self._filled(requests)
        return self._whole(self.module.logits(states)), states

    def _filled(self, requests: Sequence[Request]) -> Tensor:
        """States of a block after each text, shape (requests, places, width)."""
        known = [self._context(request) for request in requests]
        ends = [len(request.tokens) - 1 for request in requests]
        if len(known) == 1:
            context = known[0][:, :, None]
        else:  # positions come first to be padded
            context = pad_sequence([one.movedim(3, 0) for one in known]).permute(2, 3, 1, 4, 0, 5)
        device, masks = self.weight.device, [self.module.mask_token] * (self.module.size - 1)
        tokens = torch.tensor([[request.tokens[-1], *masks] for request in requests], device=device)
        filled: Tensor = self.module(tokens, torch.tensor(ends, device=device), context)
        return filled

    def _context(self, request: Request) -> Tensor:
        """Keys and values of a text up to its last token, shape (layers, 2, heads, positions, size)."""
        key, end = request.id, len(request.tokens) - 1
        start = self.held.get(key, 0)
        while start < end:
            upto = min(start + self.chunk, end)
            new = self.module.context(self.features.of(key, start, upto).to(self.weight), start)
            held = self.kept.get(key)
            if held is None or held.shape[3] < upto:
                shape = (*new.shape[:3], max(LEAST, 2 * upto), new.shape[4])
                grown = new.new_zeros(shape)
                if held is not None:
                    grown[..., :start, :] = held[..., :start, :]
                self.kept[key] = held = grown
            held[..., start:upto, :] = new
            self.held[key] = start = upto
        return self.kept[key][..., :end, :]

    def _whole(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary, -inf for tokens outside the draft vocabulary."""
        if self.ids is None:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.module.vocab_size), -inf)
        return whole.index_copy_(-1, self.ids, logits)

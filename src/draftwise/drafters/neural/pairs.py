"""The rows of a head on the target's hidden states: pairs of a state and the token after it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ...core.request import Request
from ...models.heads.eagle import Eagle
from ...models.heads.mtp import Mtp
from ...models.runner import ModelRunner, PassInput
from ...models.runner.hidden_states import Source
from ...models.runner.traits import Traits

LONG = 16  # from this many pending pairs a row is prefilled in a pass of its own


class Pairs:
    """A head with the interface that `ModelRunner` needs of a model.

    `given` are the states to read beside the tokens of the next pass, shape (rows, length, width), and
    `states` the head's output states of the latest pass.
    """

    def __init__(self, head: Eagle | Mtp) -> None:
        self.head, self.config = head, head.config
        self.weight = next(head.parameters()).new_empty(0)  # the head's device and dtype
        self.dtype, self.ids = self.weight.dtype, head.ids
        self.modules, self.training = head.modules, False
        self.given = self.states = self.weight.new_empty(0)

    def get_input_embeddings(self) -> nn.Module | SimpleNamespace:
        """A module whose weight is on the head's device."""
        return SimpleNamespace(weight=self.weight)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        cache: Any,
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
            cache=cache,
        )
        logits = self.head.logits(self.states[:, -logits_to_keep:])
        if self.ids is not None:
            whole = logits.new_full((*logits.shape[:-1], self.head.vocab_size), -inf)
            logits = whole.index_copy_(-1, self.ids, logits)
        return SimpleNamespace(logits=logits)

    __call__ = forward


class PairReader:
    """Reads pairs with a head, and keeps its rows in step with the committed text.

    `mask` is the token and the features, shape (1, layers * target width), of pairs that are read after the
    known ones by a head that drafts in parallel.
    """

    mask: tuple[int, Tensor] | None = None

    def __init__(self, head: Eagle | Mtp, target: Source) -> None:
        self.module, self.vocab_size = head, target.vocab_size
        self.features = target.hidden_states(head.layers_read)
        self.model = Pairs(head)
        self.runner = ModelRunner(self.model, traits=Traits())  # rotary positions and full attention
        self.chunk = 96 if self.runner.device.type == "cpu" else 2048  # bounds the memory of long catch-ups

    def hint(self, request: Request) -> float:
        """1 if the target has read the text, so that there is a state to continue from."""
        return float(self.ready(request))

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing yet: new states are read when a draft is requested."""

    def close(self, request: Request) -> None:
        """Free the request's row."""
        self.runner.close(request.id)

    def ready(self, request: Request) -> bool:
        """Whether the target has read all of the text but its last token, and at least one token."""
        return 1 < len(request.tokens) <= self.features.length(request.id) + 1

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
        """Read each request's pairs up to the end of its span, and `ahead` pairs of the mask; pair i is the
        state of token i and token i + 1.

        Returns the logits after the pairs of each span and of the mask, shape (pairs, vocabulary), and the
        head's states.
        """
        masks = [self.mask[0]] * ahead if self.mask else []
        for request in requests:
            if request.id not in self.runner.request_ids:
                self.runner.open(request.id)
        rows, held = (
            self.runner.move_to_front([request.id for request in requests]),
            self.runner.cached_lengths,
        )
        slots = max(len(request.tokens) + request.remaining for request in requests) + ahead
        texts: list[list[int]] = [[]] * len(rows)
        for row, request, (first, end) in zip(rows, requests, spans, strict=True):
            held[row] = min(held[row], first)
            while first - held[row] > LONG:
                upto = min(held[row] + self.chunk, first)
                self._give([(row, request, upto)], 1)
                self.runner.forward(
                    PassInput(row, [request.tokens[held[row] + 1 : upto + 1]], 1, slots=slots)
                )
            texts[row] = request.tokens[held[row] + 1 : end + 1] + masks
        wanted = [(row, r, end) for row, r, (_, end) in zip(rows, requests, spans, strict=True)]
        self._give(wanted, len(rows), ahead)
        spans = [(first, end + ahead) for first, end in spans]
        widths = [len(texts[row]) for row in rows]
        keep = max(widths) - min(w - (b - a) for w, (a, b) in zip(widths, spans, strict=True))
        logits = self.runner.forward(PassInput(0, texts, keep, slots=slots)).logits
        states = self.model.states[:, -keep:]
        ends = [keep - max(widths) + w for w in widths]
        return [
            (logits[row, end - (b - a) : end], states[row, end - (b - a) : end])
            for row, end, (a, b) in zip(rows, ends, spans, strict=True)
        ]

    def _give(self, wanted: Sequence[tuple[int, Request, int]], n: int, ahead: int = 0) -> None:
        """Set the states of each row's next pairs, up to an end, and of the mask, in a batch of `n` rows."""
        held = self.runner.cached_lengths
        parts = [self.features.of(request.id, held[row], end) for row, request, end in wanted]
        if self.mask and ahead:
            masks = self.mask[1].expand(ahead, -1)
            parts = [torch.cat((part.to(masks.device, masks.dtype), masks)) for part in parts]
        widest = max(map(len, parts))
        given = self.model.weight.new_zeros(n, widest, self.module.config.hidden_size)
        for (row, _, _), part in zip(wanted, parts, strict=True):
            given[row if n > 1 else 0, : len(part)] = self.module.read(part.to(given.device, given.dtype))
        self.model.given = given

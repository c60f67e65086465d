"""Drafts with a smaller encoder-decoder that reads the same input as the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...core.roles import Drafter
from ...errors import UserError
from ...models.load import embedded
from ...models.prompted import Prompted, Trials
from .chains import draft_chains

LOOP = ("logits_processor", "stopping_criteria", "streamer", "synced_gpus")  # not for the model


class Texts(Protocol):
    """Rows that grow: `ids` are the committed tokens of the decoder, shape (rows, tokens)."""

    ids: Tensor


class PromptedDrafter(Drafter):
    """Drafts with an encoder-decoder of the target's kind, such as a small Whisper for a large one.

    Its encoder reads the target's input once a call; its decoder follows the target's text. It drafts inside
    Transformers alone, where the inputs are at hand (`begin`).

    Source: distilled Whisper as a drafter, Gandhi, von Platen and Rush 2023 (arXiv 2311.00430).
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        self.model, self.vocab_size, self.trials = model, vocab_size, Trials(model)
        self.texts: Texts | None = None
        self.prompt: dict[str, Any] = {}
        self.prompted: Prompted | None = None
        self.order: dict[int, int] = {}  # by request, its row
        self.open_rows = 0
        self.read: Tensor | None = None  # rows as the cache has them, with guesses
        self.start = 0  # tokens of a row that are the decoder's prompt

    def begin(self, encoded: Tensor | None, kwargs: Mapping[str, Any], texts: Texts) -> None:
        """A call begins: the input of the encoder, the target's other inputs, and its rows."""
        self.texts, self.prompted, self.read = texts, None, None
        self.start = texts.ids.shape[1]
        self.order.clear()
        self.open_rows = len(texts.ids)
        self.prompt = {"inputs": None}
        if encoded is not None:
            self.prompt["inputs"] = encoded.repeat_interleave(len(texts.ids) // len(encoded), dim=0)
        if kwargs.get("attention_mask") is not None:
            self.prompt["attention_mask"] = kwargs["attention_mask"]

    def hint(self, request: Request) -> float:
        return 1.0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Requests are observed in the order of their rows."""
        self.order.setdefault(request.id, len(self.order))

    def close(self, request: Request) -> None:
        """Free what the call took, once the last of its rows has ended."""
        self.open_rows -= 1
        if not self.open_rows:
            self.texts = self.prompted = self.read = None
            self.prompt = {}

    @torch.no_grad()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job; every row takes part in each pass until all drafts are complete."""
        ids = self._rows(jobs[0].request).to(self.model.device)
        ids = ids.where(ids < embedded(self.model), 0)  # ids that only the target knows
        rows = [self.order[job.request.id] for job in jobs]
        logits = self._catch_up(ids)[rows]
        drafted = ids

        def step(tokens: Sequence[Sequence[int]], above: Any, parents: Any) -> tuple[Tensor, None]:
            nonlocal drafted
            new = drafted[:, -1:].clone()
            for row, drafted_row in zip(rows, tokens, strict=True):
                if drafted_row:
                    new[row, 0] = drafted_row[0]
            drafted = self.read = torch.cat([drafted, new], dim=1)
            assert self.prompted is not None
            return self.prompted.read(drafted, 0)[rows], None

        return draft_chains(jobs, logits, None, step, vocab_size=self.vocab_size, sample=True)

    def _rows(self, request: Request) -> Tensor:
        """The rows as far as the text of one of them goes, which a recorder may have cut.

        The steps of a single row are made after its round, so that its text may be longer here.
        """
        assert self.texts is not None
        length = self.start + request.position
        ids = self.texts.ids[:, :length]
        new = ids.new_tensor([request.tokens[len(request.tokens) + ids.shape[1] - length :]])
        return torch.cat([ids, new.expand(len(ids), -1)], dim=1)

    def _catch_up(self, ids: Tensor) -> Tensor:
        """Read the committed rows; returns the logits after them, shape (rows, 1, vocabulary)."""
        if self.prompted is None or self.read is None or ids.shape[1] < min(self.prompted.carried):
            self.prompted, self.read = self._prompted(ids), ids
        shared = min(self.read.shape[1], ids.shape[1])
        same = (self.read[:, :shared] == ids[:, :shared]).all(0).long().cumprod(0).sum()
        self.prompted.keep(min(int(same), ids.shape[1] - 1) + 1)
        self.read = ids
        return self.prompted.read(ids, 0)

    def _prompted(self, ids: Tensor) -> Prompted:
        """The model's own `generate` prepares its inputs, and the encoder runs."""
        prepared_inputs: dict[str, Any] = {}

        def capture(model: Any, input_ids: Tensor, **prepared: Any) -> Tensor:
            prepared_inputs.update(prepared, input_ids=input_ids)
            return input_ids

        settings: Any = GenerationConfig
        config = settings(max_new_tokens=1, decoder_start_token_id=int(ids[0, 0]), pad_token_id=0)
        inputs = {**self.prompt, "decoder_input_ids": ids, "generation_config": config}
        GenerationMixin.generate(self.model, **inputs, custom_generate=capture)
        config = prepared_inputs.pop("generation_config")
        kwargs = {name: value for name, value in prepared_inputs.items() if name not in LOOP}
        prompted = Prompted(self.model, kwargs.pop("input_ids"), config, kwargs)
        self.trials.settle(prompted, ids)
        if not prompted.cuts:
            raise UserError(f"{type(self.model).__name__} keeps states that cannot rewind: it cannot draft")
        return prompted

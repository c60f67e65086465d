"""The state that plain `generate` keeps from step to step, for a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList

from ...errors import UserError


class Steps:
    """The ids so far, the finished rows, and the stopping criteria and streamer, which are called with the
    same arguments and in the same order as in plain decoding.

    A step is one token of every row. Rows that are ahead wait.
    """

    def __init__(
        self,
        input_ids: Tensor,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: Any,
    ) -> None:
        self.ids, self.criteria, self.streamer = input_ids, criteria, streamer
        self.count = 0
        self.unfinished = torch.ones(len(input_ids), dtype=torch.long, device=input_ids.device)
        # Without an end-of-text criterion, finished rows continue until all are finished.
        self.pads = any(hasattr(c, "eos_token_id") for c in criteria)
        pad = getattr(config, "_pad_token_tensor", None)
        if self.pads and pad is None:
            raise UserError("pad_token_id=None: give one, since rows may end at different lengths")
        self.pad = 0 if pad is None else int(pad)
        kept = bool(config.return_dict_in_generate)
        self.scores: tuple[Tensor, ...] | None = () if kept and config.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if kept and config.output_logits else None
        self.open = [True] * len(input_ids)

    @property
    def done(self) -> bool:
        """Whether every row is finished."""
        return not any(self.open)

    def padded(self, row: int) -> bool:
        """Whether a finished row gets padding from now on."""
        return self.pads and not self.open[row]

    def record(self, scores: Tensor, logits: Tensor) -> None:
        """Store the scores and logits of the next tokens, shape (rows, vocabulary), if requested."""
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (logits,)

    def add(self, tokens: Tensor) -> None:
        """Append one token to every row, shape (rows,); finished rows get padding instead."""
        if self.pads:
            tokens = tokens * self.unfinished + self.pad * (1 - self.unfinished)
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=-1)
        ids: Any = self.ids
        ended: Any = self.criteria(ids, self.scores)
        self.unfinished = self.unfinished & ~ended
        self.open = [bool(row) for row in self.unfinished.tolist()]
        self.count += 1
        if self.streamer is not None:
            self.streamer.put(tokens.cpu())

"""Which logits processors can be applied to one row at a time, and how.

Rows advance by different numbers of tokens. A Transformers processor that computes a row's scores only from
that row's own ids and scores is applied to each row separately. Any other may count its calls, identify rows
by index, or use the whole batch: it is called as in plain decoding (see `together`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as own

from ...models.distributions import Chain

HISTORYLESS: tuple[type, ...] = (
    own.TemperatureLogitsWarper,
    own.TopKLogitsWarper,
    own.TopPLogitsWarper,
    own.TopHLogitsWarper,
    own.MinPLogitsWarper,
    own.TypicalLogitsWarper,
    own.EpsilonLogitsWarper,
    own.EtaLogitsWarper,
    own.LogitNormalization,
    own.InfNanRemoveLogitsProcessor,
    own.SuppressTokensLogitsProcessor,
)
ROWWISE: tuple[type, ...] = (
    *HISTORYLESS,
    own.MinLengthLogitsProcessor,
    own.MinNewTokensLengthLogitsProcessor,
    own.RepetitionPenaltyLogitsProcessor,
    own.NoRepeatNGramLogitsProcessor,
    own.SequenceBiasLogitsProcessor,
    own.NoBadWordsLogitsProcessor,
    own.ForcedBOSTokenLogitsProcessor,
    own.ForcedEOSTokenLogitsProcessor,
    own.ExponentialDecayLengthPenalty,
    own.SuppressTokensAtBeginLogitsProcessor,
    own.WatermarkLogitsProcessor,
)


def rowwise(processors: Iterable[Any]) -> bool:
    """Whether every processor is of a class known to compute each row from that row alone."""
    return all(type(p) in ROWWISE for p in processors)


def chain(processors: Sequence[Any], row: int, prompt: Tensor, start: int) -> Chain:
    """The processors for one row of a batch, in their order; trailing ones that do not use the history are
    applied to all positions of a draft at once.

    `prompt` are the row's ids as `generate` passes them, with padding, shape (length,); its request's text
    begins with `start` tokens.
    """
    last = max((i for i, p in enumerate(processors) if type(p) not in HISTORYLESS), default=-1) + 1
    historic = LogitsProcessorList()
    if last:
        historic.append(RowView(processors[:last], row, prompt, start))
    return Chain(historic, LogitsProcessorList(processors[last:]))


class RowView(LogitsProcessor):
    """Row-wise processors for one row of a batch, called with the row as `generate` would pass it."""

    def __init__(self, processors: Sequence[Any], row: int, prompt: Tensor, start: int) -> None:
        self.processors = LogitsProcessorList(_of_row(p, row) for p in processors)
        self.prompt, self.start = prompt[None], start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Processed scores, shape (1, vocabulary)."""
        ids: Any = torch.cat([self.prompt.to(scores.device), input_ids[:, self.start :]], dim=1)
        shaped: Tensor = self.processors(ids, scores)
        return shaped


def _of_row(processor: Any, row: int) -> Any:
    """The processor for one row: Transformers' repetition penalty stores the padding of every row."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = ignored[row : row + 1]
    return processor

"""Which logits processors may be asked about one row at a time, and how.

Rows advance by different numbers of tokens. A processor of Transformers that computes a row's scores from
that row's own ids and scores alone is asked about each row by itself. Any other may count its calls, know
rows by index, or look at the whole batch: it is called as plain decoding calls it (see `together`).
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
    """Whether every processor, of this very class, computes each row from that row alone."""
    return all(type(p) in ROWWISE for p in processors)


def chain(processors: Sequence[Any], row: int, prompt: Tensor, start: int) -> Chain:
    """The processors for one row of a batch, in their own order; those at the end that look at no history are
    called for all positions of a draft at once.

    `prompt` are the row's ids as `generate` shows them, with padding, shape (length,); its request's text
    begins with `start` tokens.
    """
    last = max((i for i, p in enumerate(processors) if type(p) not in HISTORYLESS), default=-1) + 1
    historic = LogitsProcessorList()
    if last:
        historic.append(RowView(processors[:last], row, prompt, start))
    return Chain(historic, LogitsProcessorList(processors[last:]))


class RowView(LogitsProcessor):
    """Row-wise processors for one row of a batch, called with the row as `generate` would show it."""

    def __init__(self, processors: Sequence[Any], row: int, prompt: Tensor, start: int) -> None:
        self.processors = LogitsProcessorList(_of_row(p, row) for p in processors)
        self.prompt, self.start = prompt[None], start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Processed scores, shape (1, vocabulary)."""
        ids: Any = torch.cat([self.prompt.to(scores.device), input_ids[:, self.start :]], dim=1)
        shaped: Tensor = self.processors(ids, scores)
        return shaped


def _of_row(processor: Any, row: int) -> Any:
    """The processor as one row needs it: Transformers' repetition penalty knows how every row is padded."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = ignored[row : row + 1]
    return processor

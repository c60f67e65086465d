"""One call of `generate`: the rows of its batch, from the first step to the last.

Rows advance by different numbers of tokens. A Transformers processor that computes a row's scores only from
that row's own ids and scores is applied to each row separately. Any other may count its calls, identify rows
by index, or use the whole batch: it is called as in plain decoding (see `together`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process as own
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from ...core.loop import Loop
from ...core.request import Request
from ...core.request_round import unfailed
from ...core.sampling import Sampling
from ...errors import UserError
from ...models.distributions import Chain
from .prompted import PromptedTarget
from .target import HostTarget, Prompt
from .together import Steps, Together

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


@dataclass(slots=True)
class Call:
    """The settings of one call, and its batch."""

    loop: Loop
    target: HostTarget | PromptedTarget
    config: GenerationConfig
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    steps: Steps
    prompt: Prompt

    def run(self) -> None:
        """Decode every row: `steps` then have the ids."""
        requests: list[Request] = []
        returned = self.steps.scores is not None or self.steps.logits is not None
        is_rowwise = all(type(p) in ROWWISE for p in self.processors)
        may_part = isinstance(self.target, HostTarget) or len(self.steps.ids) == 1
        independent = is_rowwise and not returned and may_part
        together = self.target.together = None if independent else self._together(requests)
        try:
            self._open(requests, together)
            while not self.steps.done:
                unfailed(self.loop.step())
                if together is None:
                    self._advance(requests)
                self._close(requests)
        finally:
            self.target.together = None
            for request in requests:
                self.loop.close(request)

    def _together(self, requests: Sequence[Request]) -> Together:
        padding = self.target.padding(self.steps, self._limit(), self.prompt)
        together = Together(self.steps, self.processors, padding, sample=bool(self.config.do_sample))
        together.requests = requests
        return together

    def _open(self, requests: list[Request], together: Together | None) -> None:
        prompts, n = self.steps.ids, len(self.prompt.texts)
        sampled = bool(self.config.do_sample) and together is None
        seeds = torch.randint(1 << 62, (n,)).tolist() if sampled else [0] * n
        settings: dict[str, Any] = {"max_new_tokens": self._limit(), "eos": self._eos()}
        settings |= shaped(self.processors) if sampled else {}
        for row, text in enumerate(self.prompt.texts):
            sampling = Sampling(seed=seeds[row], **settings)
            requests.append(self.loop.add(text, sampling))
            if isinstance(self.target, HostTarget):
                self.prompt.cached[row].load(self.target.runner, requests[row].id)
            if together is None:
                shape = chain(self.processors, row, prompts[row], len(text))
                self.target.shapes[requests[row].id] = shape

    def _advance(self, requests: Sequence[Request]) -> None:
        """Make every step for which each row has its token."""
        steps = self.steps
        while not steps.done:
            tokens = []
            for row, request in enumerate(requests):
                if steps.padded(row):
                    tokens.append(steps.pad)
                elif request.position > steps.count:
                    tokens.append(request.tokens[request.prompt_length + steps.count])
                else:
                    return
            steps.add(torch.tensor(tokens, device=steps.ids.device))

    def _close(self, requests: Sequence[Request]) -> None:
        """Close finished rows, and reject a row that cannot continue."""
        for row, request in enumerate(requests):
            if self.steps.padded(row):
                self.loop.close(request)
            elif request.done and request.position <= self.steps.count and not self.steps.done:
                raise UserError(
                    f"row {row} has reached the model's window of {self.target.max_length} tokens: "
                    "give a smaller max_new_tokens"
                )

    def _limit(self) -> int:
        length = self.steps.ids.shape[1] - self.steps.count
        limits = [c.max_length - length for c in self.criteria if type(c) is MaxLengthCriteria]
        return max(min(limits, default=1 << 30), 1)

    def _eos(self) -> frozenset[int]:
        """Return the tokens that certainly end a row."""
        ends = [c.eos_token_id.tolist() for c in self.criteria if type(c) is EosTokenCriteria]
        return frozenset(token for tokens in ends for token in tokens)


def shaped(processors: LogitsProcessorList) -> dict[str, Any]:
    """Return sampling settings that approximate the effect of these processors on a distribution.

    The target's distribution depends on the processors alone; a drafter with similar settings has a higher
    acceptance rate.
    """
    numbers: dict[str, Any] = {"temperature": 1.0}
    for processor in processors:
        if type(processor) is own.TemperatureLogitsWarper and processor.temperature >= 0.01:
            numbers["temperature"] = float(processor.temperature)
        elif type(processor) is own.TopKLogitsWarper:
            numbers["top_k"] = int(processor.top_k)
        elif type(processor) is own.TopPLogitsWarper and processor.top_p > 0:
            numbers["top_p"] = float(processor.top_p)
        elif type(processor) is own.MinPLogitsWarper:
            numbers["min_p"] = float(processor.min_p)
    return numbers


def chain(processors: Sequence[Any], row: int, prompt: Tensor, start: int) -> Chain:
    """Return the processors for one row of a batch, in their order.

    Trailing ones that do not use the history are applied to all positions of a draft at once.

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
        """Return processed scores, shape (1, vocabulary)."""
        device = self.prompt.device  # on which `generate` made the processors
        ids: Any = torch.cat([self.prompt, input_ids[:, self.start :].to(device)], dim=1)
        here: Any = scores.to(device)
        shaped: Tensor = self.processors(ids, here)
        return shaped.to(scores.device)


def _of_row(processor: Any, row: int) -> Any:
    """Return the processor for one row: Transformers' repetition penalty stores the padding of every row."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = ignored[row : row + 1]
    return processor

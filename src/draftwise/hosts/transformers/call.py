"""One call of `generate`: the rows of its batch, from the first step to the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process as own
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from ...core.loop import Loop
from ...core.request import Request
from ...core.round import Round
from ...core.sampling import Sampling
from ...errors import UserError
from .processors import chain, rowwise
from .prompt import Prompt
from .prompted import PromptedTarget
from .steps import Steps
from .target import HostTarget
from .together import Together


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

    def run(self) -> Tensor:
        """Decode every row; returns token ids with the prompt, padded on the right, shape (rows, length)."""
        requests: list[Request] = []
        asked = self.steps.scores is not None or self.steps.logits is not None
        free = rowwise(self.processors) and not asked and self.target.ragged(n=len(self.prompt.texts))
        together = None if free else self._together(requests)
        self.target.together = together
        try:
            self._open(requests, together)
            while not self.steps.done:
                _raise(self.loop.step(), requests)
                if together is None:
                    self._advance(requests)
                self._close(requests)
        finally:
            self.target.together = None
            for request in requests:
                self.loop.close(request)
        return self.steps.ids

    def _together(self, requests: Sequence[Request]) -> Together:
        padding = self.target.padding(self.steps, self._limit(), self.prompt)
        together = Together(self.steps, self.processors, padding, sample=bool(self.config.do_sample))
        together.requests = requests
        return together

    def _open(self, requests: list[Request], together: Together | None) -> None:
        """Open a request for every row, in `requests`."""
        prompts, n = self.steps.ids, len(self.prompt.texts)
        drawn = bool(self.config.do_sample) and together is None
        seeds = torch.randint(1 << 62, (n,)).tolist() if drawn else [0] * n
        for row, text in enumerate(self.prompt.texts):
            more = {"eos": self._eos(), **shaped(self.processors)} if drawn else {"eos": self._eos()}
            sampling = Sampling(max_new_tokens=self._limit(), seed=seeds[row], **more)
            requests.append(self.loop.add(text, sampling))
            self.target.enter(self.prompt, row, requests[row])
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
            steps.add(torch.tensor(tokens, dtype=steps.ids.dtype, device=steps.ids.device))

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
        """The maximum number of new tokens of a row."""
        length = self.steps.ids.shape[1] - self.steps.count
        limits = [c.max_length - length for c in self.criteria if type(c) is MaxLengthCriteria]
        return max(min(limits, default=1 << 30), 1)

    def _eos(self) -> frozenset[int]:
        """The tokens that certainly end a row."""
        found = [c.eos_token_id.tolist() for c in self.criteria if type(c) is EosTokenCriteria]
        return frozenset(token for some in found for token in some)


def shaped(processors: LogitsProcessorList) -> dict[str, Any]:
    """Sampling settings that approximate the effect of these processors on a distribution.

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


def _raise(rounds: Sequence[Round], requests: Sequence[Request]) -> None:
    """Raise the error of a caller's round."""
    mine = {request.id for request in requests}
    for round in rounds:
        if round.request in mine and round.error is not None:
            raise round.error

"""What sampling settings make of logits: Transformers' own processors, in Transformers' own order."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ..core.request import Request
from ..core.sampling import Sampling
from ..errors import UserError


class CountPenalty(LogitsProcessor):
    """Presence and frequency penalties of the OpenAI API: what the output has said becomes less likely."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self.presence, self.frequency, self.prompt_length = presence, frequency, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores less the penalties, shape (rows, vocabulary)."""
        said = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, said, torch.ones_like(said, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """Temperature, top-k, top-p and min-p: the processors that do not look at the history."""
    chain = LogitsProcessorList()
    if sampling.greedy:
        return chain
    if sampling.temperature != 1.0:
        chain.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k > 0:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        chain.append(MinPLogitsWarper(sampling.min_p))
    return chain


def historic(sampling: Sampling, prompt_length: int) -> LogitsProcessorList:
    """Penalties and the user's own processors: those that look at the history, which come first."""
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.presence_penalty or sampling.frequency_penalty:
        chain.append(CountPenalty(sampling.presence_penalty, sampling.frequency_penalty, prompt_length))
    chain.extend(sampling.processors)
    return chain


@dataclass(slots=True)
class Chain:
    """The processors of one request, made once when it opens."""

    historic: LogitsProcessorList
    warpers: LogitsProcessorList

    @classmethod
    def of(cls, request: Request) -> Chain:
        """The chain for a request's settings."""
        return cls(historic(request.sampling, request.prompt_length), warpers(request.sampling))


NO_IDS = torch.zeros((1, 0), dtype=torch.long)


def warp(chain: LogitsProcessorList, rows: Tensor) -> Tensor:
    """Probabilities of logits after the warpers, float32, shape (rows, vocabulary)."""
    rows = rows.float()
    ids: Any = NO_IDS  # the warpers do not look at it
    for processor in chain:
        rows = processor(ids, rows)
    return rows.softmax(-1)


def draw(p: Tensor, u: float) -> int:
    """The token at quantile `u` of `p`, shape (vocabulary,), in vocabulary order.

    Raises:
        UserError: `p` is no law.
    """
    cdf = p.double().cumsum(0)
    token = int(torch.searchsorted(cdf, cdf[-1] * u, right=True))
    if token == len(p):  # by rounding, or because nothing is larger than NaN, nor zero than zero
        if not cdf[-1] > 0:
            raise no_token()
        return token - 1
    return token


def no_token() -> UserError:
    """For a row of logits that allows no token: NaN anywhere, or -inf everywhere."""
    return UserError(
        "no token can be chosen, since the logits are NaN or all -inf: see that a processor leaves a token, "
        "and that the model does not overflow in its dtype (dtype=float32 does not)"
    )


NO_TOKEN = -1  # among `choices`


def likeliest(logits: Tensor) -> Any:
    """The first token of the largest logit, as nested lists; NumPy finds it several times faster on a CPU."""
    if on_host(logits):
        return logits.numpy().argmax(-1).tolist()
    return logits.argmax(-1).tolist()


def choices(logits: Tensor) -> Any:
    """The likeliest tokens as nested lists, `NO_TOKEN` where there is no largest logit: one transfer."""
    tokens = logits.argmax(-1, keepdim=True)  # NaN counts as the largest
    return tokens.masked_fill(~(logits.gather(-1, tokens) > -inf), NO_TOKEN)[..., 0].tolist()


def top_token(law: Tensor) -> int:
    """The likeliest token of probabilities, shape (vocabulary,)."""
    at = law.argmax()
    token, p = torch.stack((at.double(), law[at].double())).tolist()  # one transfer
    if not p > 0:
        raise no_token()
    return int(token)


def on_host(logits: Tensor) -> bool:
    """Whether NumPy can look at these logits where they are."""
    return logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64)

"""From logits to probabilities: Transformers' own logits processors, in Transformers' order."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
    """Presence and frequency penalties of the OpenAI API: tokens in the output become less likely."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self.presence, self.frequency, self.prompt_length = presence, frequency, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        output = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, output, torch.ones_like(output, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """Temperature, top-k, top-p and min-p: the processors that do not depend on the history."""
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
    """Penalties and the user's own processors: these depend on the history and are applied first."""
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.presence_penalty or sampling.frequency_penalty:
        chain.append(CountPenalty(sampling.presence_penalty, sampling.frequency_penalty, prompt_length))
    chain.extend(sampling.processors)
    return chain


@dataclass(slots=True)
class Chain:
    """The processors of one request, created once when it opens."""

    historic: LogitsProcessorList
    warpers: LogitsProcessorList

    @classmethod
    def of(cls, request: Request) -> Chain:
        return cls(historic(request.sampling, request.prompt_length), warpers(request.sampling))


NO_IDS = torch.zeros((1, 0), dtype=torch.long)


def warp(chain: LogitsProcessorList, rows: Tensor) -> Tensor:
    """Apply the warpers to logits and return probabilities, float32, shape (rows, vocabulary)."""
    return warped(chain, rows).softmax(-1)


def warped(chain: LogitsProcessorList, rows: Tensor) -> Tensor:
    """Logits after the warpers, float32, shape (rows, vocabulary)."""
    rows = rows.float()
    ids: Any = NO_IDS  # the warpers ignore it
    for processor in chain:
        rows = processor(ids, rows)
    return rows.detach()  # a processor may learn


def draw(p: Tensor | NDArray[Any], u: float) -> int:
    """The token at quantile `u` of `p`, shape (vocabulary,), in vocabulary order (inverse transform).

    Its probability is above 0, whatever is rounded.

    Raises:
        UserError: `p` is not a distribution.
    """
    if isinstance(p, np.ndarray):
        return _draw(p, u)
    if p.device.type == "mps":  # Apple's GPUs have no float64
        p = p.cpu()
    if on_host(p):
        return _draw(in_numpy(p), u)
    cdf = p.cumsum(0, dtype=torch.float64)
    token = int(torch.searchsorted(cdf, cdf[-1] * u, right=True))
    return token if token < len(p) else _last(p.cpu().numpy(), float(cdf[-1]))


def _draw(p: NDArray[Any], u: float) -> int:
    """The same on the host, by the sums of blocks and a look into one of them."""
    sums = np.add.reduceat(p, np.arange(0, len(p), BLOCK), dtype=np.float64).cumsum()
    at = sums[-1] * u
    block = int(sums.searchsorted(at, side="right"))
    start = block * BLOCK
    inside = p[start : start + BLOCK].cumsum(dtype=np.float64)
    token = start + int(inside.searchsorted(at - (sums[block - 1] if block else 0.0), side="right"))
    return token if token < start + len(inside) else _last(p[: start + BLOCK], sums[-1])


def _last(p: NDArray[Any], total: float) -> int:
    """The last token with a probability, where a quantile lies beyond all by rounding, or `p` is wrong."""
    if not total > 0:  # NaN as well
        raise no_token()
    return int(p.nonzero()[0][-1])


def array_of(q: Any) -> NDArray[Any]:
    """A distribution in any form and of any precision as an array, float32 or float64."""
    q = torch.as_tensor(q).detach()
    array: NDArray[Any] = q.to("cpu", torch.promote_types(q.dtype, torch.float32)).numpy()
    return array


def no_token() -> UserError:
    """Return the error for a row of logits that allows no token: NaN anywhere, or -inf everywhere."""
    return UserError(
        "no token can be chosen, since the logits are NaN or all -inf: see that a processor leaves a token, "
        "and that the model does not overflow in its dtype (dtype=float32 does not)"
    )


def whole_vocabulary(logits: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """Return logits over the target's vocabulary, -inf for tokens outside a draft vocabulary of `ids`."""
    if ids is None:
        return logits
    whole = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    return whole.index_copy_(-1, ids, logits)


NO_TOKEN = -1  # a value in `choices`
BLOCK = 64  # probabilities that are added before one of them is looked for


def most_likely(logits: Tensor) -> Any:
    """The first token with the largest logit, as nested lists; on a CPU NumPy is several times faster."""
    return (in_numpy(logits) if on_host(logits) else logits).argmax(-1).tolist()


def choices(logits: Tensor) -> Any:
    """The most likely tokens as nested lists, `NO_TOKEN` if no logit is largest; one transfer from the
    device."""
    return top_tokens(logits).tolist()


def top_tokens(logits: Tensor) -> Tensor:
    """The most likely tokens, `NO_TOKEN` if no logit is largest, shape (..., vocabulary) to (...)."""
    tokens = logits.argmax(-1, keepdim=True)  # NaN counts as the largest
    return tokens.masked_fill(~(logits.gather(-1, tokens) > -inf), NO_TOKEN)[..., 0]


def top_token(logits: Tensor) -> int:
    """The most likely token of a row of logits, shape (vocabulary,)."""
    at = logits.argmax(keepdim=True)
    # One transfer: an index without dimensions would be one of its own.
    token, largest = torch.cat((at.double(), logits.gather(0, at).double())).tolist()
    if not largest > -inf:  # NaN as well
        raise no_token()
    return int(token)


def on_host(logits: Tensor) -> bool:
    """Whether logits are in the CPU's memory, where NumPy reads them."""
    return logits.device.type == "cpu"


def in_numpy(logits: Tensor) -> NDArray[Any]:
    """Logits on the host as an array, of the same values: in float32 where NumPy lacks their dtype."""
    return (logits if logits.dtype in (torch.float32, torch.float64) else logits.float()).numpy()

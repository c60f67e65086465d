"""What sampling settings make of logits: Transformers' own processors, in Transformers' own order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any, cast

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

from ..core.drafts import Draft
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


def _top(law: Tensor) -> int:
    """The likeliest token of probabilities, shape (vocabulary,)."""
    at = law.argmax()
    token, p = torch.stack((at.double(), law[at].double())).tolist()  # one transfer
    if not p > 0:
        raise no_token()
    return int(token)


def on_host(logits: Tensor) -> bool:
    """Whether NumPy can look at these logits where they are."""
    return logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64)


def overlaps(draft: Draft, logits: Tensor) -> list[float]:
    """1 - TV between the raw laws of target and drafter at every drafted node, computed on the device.

    `logits` of shape (1 + nodes, vocabulary) are the target's after the last committed token and after each
    node. Without rows, and in a tree, the drafter was certain of its token: the target's probability of it.
    """
    above = torch.tensor(draft.parents, device=logits.device) + 1
    p = logits[above].float().softmax(-1)
    if draft.rows is None or not draft.is_chain:
        tokens = torch.tensor(draft.tokens, device=logits.device)
        return cast("list[float]", p.gather(1, tokens[:, None])[:, 0].tolist())
    q = torch.stack(draft.rows).to(p.device).float().softmax(-1)
    shared = min(p.shape[-1], q.shape[-1])  # what one side alone can say has no overlap
    return cast("list[float]", torch.minimum(p[:, :shared], q[:, :shared]).sum(-1).tolist())


class GreedyScores:
    """Greedy decoding with nothing that shapes the law: the likeliest token of each node.

    On the host a row is searched when it is asked for, since those after a rejection never are; elsewhere
    `choices` were found for the whole batch, in one transfer.
    """

    __slots__ = ("choices", "draft", "logits", "rows")

    def __init__(self, draft: Draft, logits: Tensor, choices: Sequence[int] | None) -> None:
        self.draft, self.logits, self.choices = draft, logits, choices
        self.rows = logits.numpy() if choices is None else None

    def choice(self, node: int) -> int:
        """The likeliest token after `node`."""
        if self.choices is not None:
            token = self.choices[node + 1]
            known = token != NO_TOKEN
        else:
            row = self.rows[node + 1]  # type: ignore[index]
            token = int(row.argmax())
            known = row[token] > -inf  # the largest of numbers with NaN is NaN
        if not known:
            raise no_token()
        return token

    def prob(self, node: int) -> float:
        """1 for the likeliest token, else 0."""
        return float(self.choice(self.draft.parents[node]) == self.draft.tokens[node])

    def residual(self, node: int) -> int:
        """The likeliest token: its probability is 1, so what is left after a rejection is itself."""
        return self.choice(self.draft.parents[node])

    def logprob(self, node: int, token: int) -> float:
        """Log-probability of `token` under the raw softmax at temperature 1."""
        return float(self.logits[node + 1].float().log_softmax(-1)[token])

    def chance(self, node: int, token: int) -> float:
        """1 for the likeliest token after `node`, else 0."""
        return float(self.choice(node) == token)

    def laws(self, nodes: Sequence[int]) -> None:
        """The laws are one-hot."""

    def overlaps(self) -> list[float]:
        """1 - TV of the raw laws at each drafted node."""
        return overlaps(self.draft, self.logits)


class LawScores:
    """The processed law of every node: all at once where no processor looks at the history, else when asked.

    A processor that looks at the history is called once per committed token, in order, with the committed
    prefix, exactly as in plain decoding; so one with a state of its own (a grammar) stays right.
    """

    __slots__ = ("_laws", "chain", "draft", "logits", "probs", "request", "start")

    def __init__(self, request: Request, draft: Draft, logits: Tensor, chain: Chain) -> None:
        self.request, self.draft, self.logits, self.chain = request, draft, logits, chain
        self.start = len(request.tokens)  # scores outlive the commit of their round
        self._laws: dict[int, Tensor] = {}
        self.probs: list[float] | None = None
        if not chain.historic:
            rows = warp(chain.warpers, logits)
            self._laws = dict(enumerate(rows, start=-1))
            if draft.dist is not None:
                tokens = torch.tensor(draft.tokens, device=rows.device)
                self.probs = rows[:-1].gather(1, tokens[:, None])[:, 0].tolist()

    def choice(self, node: int) -> int:
        """The target's own token after `node`."""
        law = self._law(node)
        if self.request.sampling.greedy:
            return _top(law)
        depth = len(self._path(node))
        return draw(law, self.request.uniform(self.request.position + depth))

    def prob(self, node: int) -> float:
        """The target's probability of the drafted token `node`."""
        law, token = self._law(self.draft.parents[node]), self.draft.tokens[node]
        if self.request.sampling.greedy:
            return float(_top(law) == token)
        p = float(law[token]) if self.probs is None else self.probs[node]
        if isnan(p):
            raise no_token()
        return p

    def residual(self, node: int) -> int:
        """A token from (p - q)+ at the parent of `node`; p itself where rounding leaves nothing."""
        parent = self.draft.parents[node]
        if self.request.sampling.greedy:
            return _top(self._law(parent))
        law = self._law(parent)
        left = (law - self.draft.dist[node].to(law.device)).clamp_(min=0)
        return draw(left if float(left.sum()) > 0 else law, self.request.rng.random())

    def logprob(self, node: int, token: int) -> float:
        """Log-probability of `token` under the raw softmax at temperature 1."""
        return float(self.logits[node + 1].float().log_softmax(-1)[token])

    def chance(self, node: int, token: int) -> float:
        """The target's probability of `token` after `node`."""
        law = self._law(node)
        return float(law.argmax() == token) if self.request.sampling.greedy else float(law[token])

    def laws(self, nodes: Sequence[int]) -> Tensor | None:
        """The laws after `nodes`, shape (nodes, vocabulary), float32; None where they are one-hot."""
        if self.request.sampling.greedy:
            return None
        return torch.stack([self._law(node) for node in nodes])

    def overlaps(self) -> list[float]:
        """1 - TV of the raw laws at each drafted node."""
        return overlaps(self.draft, self.logits)

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(self.draft.tokens[node])
            node = self.draft.parents[node]
        return path[::-1]

    def _law(self, node: int) -> Tensor:
        if node not in self._laws:
            history = [*self.request.tokens[: self.start], *self._path(node)]
            ids: Any = torch.tensor([history], device=self.logits.device)
            # A copy: a processor may write into what it is given, and these rows are needed as they are.
            row = self.chain.historic(ids, self.logits[node + 1][None].to(torch.float32, copy=True))
            self._laws[node] = warp(self.chain.warpers, row)[0]
        return self._laws[node]

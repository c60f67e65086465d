"""Distances of a drafter from the target at each token: cross-entropy, Kullback-Leibler, total variation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .texts import Answer


def distance(loss: str, drafter: Tensor, target: Tensor | None, tokens: Tensor) -> Tensor:
    """The mean of a loss over tokens, from raw logits at temperature 1, in nats.

    `ce` is -ln q(token); `kl` is sum p ln(p / q); `tv` is 1 - sum min(p, q), the probability that a sampled
    draft is rejected. Shapes: drafter and target (tokens, vocabulary), tokens (tokens).
    """
    if loss == "ce" or target is None:
        return F.cross_entropy(drafter.float(), tokens)
    logq = drafter.float().log_softmax(-1)
    if loss == "kl":
        return F.kl_div(logq, target.float().log_softmax(-1), reduction="batchmean", log_target=True)
    return 1.0 - torch.minimum(logq.exp(), target.float().softmax(-1)).sum(-1).mean()


def agreement(drafter: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """For each token, the overlap sum min(p, q), and whether both have the same most likely token; shape
    (tokens).
    """
    p, q = target.float().softmax(-1), drafter.float().softmax(-1)
    return torch.minimum(p, q).sum(-1), (p.argmax(-1) == q.argmax(-1)).float()


def padded(batch: Sequence[Answer], device: torch.device) -> tuple[Tensor, Tensor, int]:
    """A batch of texts, padded on the right, where causal attention never sees the padding.

    Returns the ids, shape (answers, longest); which of the positions from `first` on are followed by a token
    of the answer, shape (answers, longest - first - 1); and `first`.
    """
    longest = max(len(one.text) for one in batch)
    first = min(len(one.prompt) for one in batch) - 1
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    guessed = torch.zeros(len(batch), longest - first - 1, dtype=torch.bool)
    for row, one in enumerate(batch):
        ids[row, : len(one.text)] = torch.tensor(one.text)
        guessed[row, len(one.prompt) - 1 - first : len(one.text) - 1 - first] = True
    return ids.to(device), guessed.to(device), first

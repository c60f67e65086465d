"""Training examples of a stop classifier: tokens drafted along the target's text, and their acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.stops import TOP
from .losses import padded
from .teacher import Teacher
from .texts import Answer, Tell


@dataclass(frozen=True, slots=True)
class Drafted:
    """One answer, token by token: the inputs of DISCO's classifier, shape (tokens, 12), the token drafted at
    each position, and its acceptance probability, both of shape (tokens)."""

    features: Tensor
    tokens: Tensor
    accepted: Tensor


@torch.no_grad()
def drafted(
    answers: Sequence[Answer],
    teacher: Teacher,
    drafter: Any,
    labels: str,
    *,
    seed: int,
    batch: int,
    tell: Tell,
    half: bool = False,
) -> list[Drafted]:
    """Let the drafter predict every token of the answers, each after the target's own text before it.

    `labels`: `agree` takes its most likely token, accepted if it is the target's too (greedy decoding);
    `chance` samples one from q, accepted with min(1, p / q) (SpecDec++, arXiv 2405.19715); `overlap` is the
    probability before sampling, 1 - TV (DISCO, arXiv 2405.04304). Samples depend on the seed alone. With
    `half` the models' matrix products are in bfloat16.
    """
    rng, found = torch.Generator().manual_seed(seed), dict[int, Drafted]()
    order = sorted(range(len(answers)), key=lambda i: len(answers[i].text))  # less padding
    for at in range(0, len(answers), batch):
        some = [answers[i] for i in order[at : at + batch]]
        ids, guessed, first = padded(some, drafter.device)
        keep = torch.arange(first, ids.shape[1] - 1, device=ids.device)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=half):
            guesses = drafter(ids, logits_to_keep=keep, use_cache=False).logits[guessed]
            rows = (guesses, teacher.logits(some))
        size = min(row.shape[-1] for row in rows)
        q, p = (row[:, :size].float().softmax(-1).cpu() for row in rows)
        tokens, accepted = _labels(labels, q, p, rng)
        counts = [len(one.tokens) for one in some]
        places = torch.cat([torch.arange(n) for n in counts])
        parts = (torch.split(t, counts) for t in (features(q, places), tokens, accepted))
        made = (Drafted(*one) for one in zip(*parts, strict=True))
        found |= dict(zip(order[at : at + batch], made, strict=True))
        tell("Labels", min(at + batch, len(answers)), len(answers))
    return [found[i] for i in range(len(answers))]


def features(q: Tensor, places: Tensor) -> Tensor:
    """`draftwise.policies.classifiers.stopping.features` of many tokens at once: shape (tokens, 12)."""
    top = q.topk(min(TOP, q.shape[-1])).values
    entropy = -torch.special.xlogy(top, top).sum(-1)
    top = torch.nn.functional.pad(top, (0, TOP - top.shape[-1]))
    return torch.cat((top, entropy[:, None], places[:, None].float()), dim=-1)


def _labels(labels: str, q: Tensor, p: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    if labels == "agree":
        tokens = q.argmax(-1)
        return tokens, (p.argmax(-1) == tokens).float()
    drawn = torch.rand(len(q), generator=rng)[:, None]
    tokens = (q.cumsum(-1) < drawn * q.sum(-1, keepdim=True)).sum(-1).clamp(max=q.shape[-1] - 1)
    if labels == "overlap":
        return tokens, torch.minimum(p, q).sum(-1)
    chosen = tokens[:, None]
    return tokens, (p.gather(1, chosen) / q.gather(1, chosen).clamp(min=1e-30)).clamp(max=1.0)[:, 0]


def scores(chances: Tensor, accepted: Tensor, *, weight: float = 1.0) -> dict[str, float]:
    """F1 of the prediction "accepted", and accuracy.

    The threshold corresponds to an acceptance probability of 1/2: after training with rejections weighted by
    `weight`, this is an output of 1 / (1 + weight).
    """
    said, true = chances * (1.0 + weight) >= 1.0, accepted >= 0.5
    hits = float((said & true).sum())
    wrong = float((said ^ true).sum())
    return {"f1": 2 * hits / max(2 * hits + wrong, 1.0), "accuracy": 1.0 - wrong / max(len(true), 1)}

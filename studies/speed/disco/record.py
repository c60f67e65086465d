"""Record the inputs of DISCO's classifier at every draft position, so that any threshold can be replayed.

A trace of `draftwise trace` has only four signals per token; the classifier reads ten probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from draftwise.models.cache_names import CACHE
from draftwise.train.examples import features

Features = NDArray[np.float32]


@dataclass(frozen=True)
class Recorded:
    """One text of n tokens, and the drafts that may come along it.

    `accepted[j]` says whether the token drafted in the place of token j is accepted where everything before
    it was; `on[j]` is what the classifier reads of it, shape (n, 12). `off[j]` is what it reads of the tokens
    drafted after a wrong one at j, and `off[n]` of those after the end of the text, shape (n + 1, longest -
    1, 12). `budget` is the most tokens that the text may have.
    """

    on: Features
    off: Features
    accepted: NDArray[np.bool_]
    budget: int
    category: str
    validation: bool

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        part = path.with_suffix(".part")
        arrays: dict[str, Any] = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Recorded:
        """What `save` wrote."""
        with np.load(path) as kept:
            arrays = {f.name: kept[f.name] for f in fields(cls)}
        return cls(**arrays | {name: arrays[name].item() for name in ("budget", "category", "validation")})


@torch.no_grad()
def record(
    target: Any,
    drafter: Any,
    prompt: Sequence[int],
    text: Sequence[int],
    *,
    longest: int,
    budget: int,
    rng: torch.Generator | None = None,
    **about: Any,
) -> Recorded:
    """Both models read a text of the target; then the drafter continues from where it was wrong.

    Without `rng` both are greedy. With it the text was sampled at temperature 1, and so are drafts: a draft
    that was right before token j has that very token there with probability min(1, q / p) given the text,
    else a token from (q - p)+, normalized, after which it continues to sample from q. So rounds have the
    distribution of live ones.
    """
    n, ids = len(text), torch.tensor([[*prompt, *text]])
    cache = DynamicCache()
    rows = drafter(ids, use_cache=True, logits_to_keep=n + 1, **{CACHE: cache}).logits[0].float()
    p = target(ids, logits_to_keep=n + 1, use_cache=False).logits[0, :n].float().softmax(-1)
    q, tokens = rows[:n].softmax(-1), torch.tensor(list(text))
    if rng is None:
        drafted = q.argmax(-1)
        accepted = drafted == tokens
    else:
        own, right = (distribution.gather(1, tokens[:, None])[:, 0] for distribution in (q, p))
        accepted = torch.rand(n, generator=rng) * right < own
        drafted = drawn((q - p).clamp(min=0.0), rng)
    ended = n < budget
    wrong = [j for j in range(n) if not accepted[j]] + ([n] if ended else [])
    off = torch.zeros(n + 1, longest - 1, 12)
    first = torch.cat((drafted, _next(rows[n:], rng)))
    if wrong and longest > 1:
        places = torch.tensor(wrong)
        off[places] = onward(drafter, cache, len(prompt), places, first[places], longest - 1, rng)
    if ended and longest > 1:  # after the end the first token is read as well
        off[n] = torch.cat((features(rows[n:].softmax(-1), torch.tensor([n])), off[n, :-1]))
    on = features(q, torch.arange(n))
    return Recorded(on.numpy(), off.numpy(), accepted.numpy(), budget, **about)


def onward(
    drafter: Any,
    cache: DynamicCache,
    start: int,
    places: Tensor,
    tokens: Tensor,
    steps: int,
    rng: torch.Generator | None,
) -> Tensor:
    """What is read of `steps` tokens drafted after `tokens`, each in a text that ends before its place.

    Shape (places, steps, 12). All share the keys and values of the text, of which each sees its beginning.
    """
    held, rows, found = cache.get_seq_length(), len(places), []
    cache.batch_repeat_interleave(rows)
    seen = (torch.arange(held)[None] < (start + places)[:, None]).long()
    for step in range(steps):
        seen = torch.cat((seen, torch.ones(rows, 1, dtype=torch.long)), dim=1)
        logits = drafter(
            tokens[:, None],
            attention_mask=seen,
            position_ids=(start + places + step)[:, None],
            use_cache=True,
            **{CACHE: cache},
        ).logits[:, -1]
        found.append(features(logits.float().softmax(-1), places + 1 + step))
        tokens = _next(logits.float(), rng)
    return torch.stack(found, dim=1)


def drawn(weights: Tensor, rng: torch.Generator) -> Tensor:
    """One index per row with probabilities in proportion to `weights`; for a row of zeros the first."""
    total = weights.cumsum(-1)
    at = torch.rand(len(weights), 1, generator=rng) * total[:, -1:]
    return (total <= at).sum(-1).clamp(max=weights.shape[-1] - 1)


def _next(logits: Tensor, rng: torch.Generator | None) -> Tensor:
    return logits.argmax(-1) if rng is None else drawn(logits.softmax(-1), rng)

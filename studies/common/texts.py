"""Prompts of Spec-Bench, and the texts that a loop or Transformers writes after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwise.core.loop import Loop
from draftwise.core.request_round import unfailed
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.data import spec_bench


def spread(count: int, *, start: int = 0) -> list[str]:
    """The texts of `count` prompts at even distances, from the one numbered `start`."""
    every = [prompt.text for prompt in spec_bench()]
    return every[start :: max(1, len(every) // count)][:count]


def write(
    loop: Loop, prompts: Sequence[Sequence[int]], sampling: Sampling, *, batch: int = 1
) -> tuple[list[list[int]], list[Round]]:
    """All texts in the order of the prompts, and their rounds; raises what has ended a text."""
    rounds, texts = list(loop.run(prompts, sampling, batch=batch)), dict[int, list[int]]()
    for one in unfailed(rounds):
        texts.setdefault(one.request, []).extend(one.tokens)
    return [texts[request] for request in sorted(texts)], rounds


def generated(model: Any, prompt: Sequence[int], n: int, **more: Any) -> list[int]:
    """The greedy text of `n` tokens by Transformers' own `generate`, with further settings."""
    import torch

    ids = torch.tensor([prompt], device=model.device)
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": n, "do_sample": False}
    text: list[int] = model.generate(ids, **settings, **more)[0, len(prompt) :].tolist()
    return text

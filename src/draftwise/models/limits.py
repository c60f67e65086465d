"""State-space layers that limit the step of a token in passes over several tokens, and in no pass over one.

So Nemotron-H and Zamba2 are in Transformers: their own decoding reads the prompt with the limit, and what it
writes without. A pass that reads drafted tokens has to do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any

import torch
from torch import nn

from .modes import attributes

NAME = "time_step_limit"
FREE = (0.0, inf)  # the step is positive


def limited(model: nn.Module) -> dict[Any, tuple[float, float]]:
    """The modules of a model that limit the step, and the least and largest one."""
    found: dict[Any, tuple[float, float]] = {}
    for module in model.modules():
        limit = getattr(module, NAME, None)
        if isinstance(limit, (tuple, list)) and len(limit) == 2 and tuple(limit) != FREE:
            found[module] = (float(limit[0]), float(limit[1]))
    return found


def freed(
    modules: dict[Any, tuple[float, float]], prompts: Sequence[int], width: int, like: torch.Tensor
) -> AbstractContextManager[None]:
    """Within it, only the first `prompts[i]` tokens of row i of a pass of this width are limited.

    The limits are numbers where they can be, since kernels take nothing else, and otherwise tensors on the
    device of `like`.
    """
    if not modules or min(prompts) >= width:
        return nullcontext()
    inside = torch.tensor([[[k < n] for k in range(width)] for n in prompts], device=like.device)
    changes = list[tuple[Any, str, Any]]()
    for module, limit in modules.items():
        new = (torch.where(inside, *pair).to(like) for pair in zip(limit, FREE, strict=True))
        changes.append((module, NAME, tuple(new) if max(prompts) > 0 else FREE))
    return attributes(changes)

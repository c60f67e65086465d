"""How a model is told which positions of a pass need logits."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

import torch


def copies(parameter: Parameter | None, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether naming positions by their indices is faster than by a number of last ones.

    On a CPU without matrix instructions for bfloat16, PyTorch 2.13 multiplies a slice of states, as a number
    gives, 40 times slower than the copy that indices give: 0.6 s instead of 15 ms for 152,000 tokens of
    vocabulary. `parameter` is `logits_to_keep` of the model's forward, if it has one.
    """
    slow = device.type == "cpu" and dtype == torch.bfloat16
    return slow and parameter is not None and "Tensor" in str(parameter.annotation)


def last(keep: int, width: int, *, indices: bool) -> Any:
    """The last `keep` of a pass's `width` positions, as a number or as indices."""
    return torch.arange(width - keep, width) if indices and keep < width else keep

"""The one reason for which two greedy texts may part: a tie that float32 rounding decides."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CLOSE = 1e-4  # two logits further apart than this are never a tie


def parting(a: Sequence[int], b: Sequence[int]) -> int:
    """The first place where two texts differ, or the length of the shorter one."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def tie(rounded: Tensor, exact: Tensor) -> bool:
    """Whether rounding may decide which logit is the largest.

    The margin between the two largest in float64 must be below four times the largest error that float32
    made in this very row, and below `CLOSE`.
    """
    first, second = exact.topk(2).values.tolist()
    error = float((rounded.double() - exact).abs().max())
    return bool(first - second < min(4 * error, CLOSE))


class Judge:
    """Tells ties from differences for one float32 model, by the same model in float64."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.exact: Any = None

    @torch.inference_mode()
    def tie(self, prefix: Sequence[int]) -> bool:
        """Whether rounding may decide which token follows `prefix`."""
        if self.exact is None:
            self.exact = copy.deepcopy(self.model).double()
        ids = torch.tensor([prefix])
        return tie(self.model(ids).logits[0, -1], self.exact(ids).logits[0, -1])

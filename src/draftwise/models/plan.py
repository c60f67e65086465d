"""Where a pass writes in the KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(slots=True)
class Plan:
    """Where the next pass writes: rows `first` to `last` (exclusive), `width` tokens each, attending to slots
    0 to `total` (exclusive). If `even`, all rows write from slot `start` on, otherwise to the slots `at`,
    shape (rows, width). `capacity` and `slots` are to be allocated, `most` may finally be needed. In a `tree`
    slots are no positions. `buffers` counts how often any layer's tensors were replaced."""

    first: int = 0
    last: int = 1
    width: int = 0
    total: int = 0
    slots: int = 0
    most: int = 0
    capacity: int = 1
    start: int = 0
    even: bool = True
    tree: bool = False
    buffers: int = 0
    at: NDArray[np.int64] = field(default_factory=lambda: np.zeros((1, 0), np.int64))
    index: dict[tuple[torch.device, int], Tensor] = field(default_factory=dict)

    def place(self, at: NDArray[np.int64]) -> None:
        """Set where an uneven pass writes: slot `at[i, j]` of row `first + i`, shape (rows, width)."""
        self.at, self.index = at, {}

    def flat(self, device: torch.device, heads: int) -> Tensor:
        """Where an uneven pass writes, as indices of a flat (rows, heads, slots): rows * heads * width."""
        if (device, heads) not in self.index:
            lines = np.arange(self.first * heads, self.last * heads).reshape(-1, heads, 1) * self.slots
            index = torch.from_numpy((lines + self.at[:, None]).ravel())
            self.index[device, heads] = index.to(device, non_blocking=True)
        return self.index[device, heads]

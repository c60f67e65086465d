"""What may be attached to the rows of a model: watchers of its passes, and its compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Watcher(Protocol):
    """Records data of the latest pass by row.

    Data set aside after texts that are not all read in one pass is joined, padded on the right: the last
    `width` positions of row `at` of the latest pass are those of `row`. `trim` drops all but the last
    positions of the latest pass, and `append` adds the latest pass to those of the steps before it.
    """

    def set_aside(self, row: int, at: int, width: int) -> None: ...
    def join(self) -> None: ...
    def trim(self, width: int) -> None: ...
    def append(self, step: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Sliced:
    """The rows of all layers that a compiled pass was given.

    `span` is the first and last row, and what tells the buffers that they are `parts` of from others.
    """

    span: tuple[int, int, int, int, int]
    parts: list[Tensor]


class Few:
    """Memory for the ids of a short pass, at most `most` of them, on the CPU."""

    def __init__(self, most: int) -> None:
        self.numbers = np.zeros((1, most), np.int64)
        self.tensor = torch.from_numpy(self.numbers)

    def ids(self, tokens: Sequence[int]) -> Tensor:
        """The ids of one text's tokens, shape (1, tokens); until the next call."""
        self.numbers[0, : len(tokens)] = tokens
        return self.tensor[:, : len(tokens)]


class Graph(Protocol):
    """The compiled passes of a model (see `draftwise.models.compiled`)."""

    def __call__(self, rows: Any, ids: Tensor, named: dict[str, Any], keep: int) -> Tensor: ...
    def step(self, rows: Any, tokens: Sequence[int], keep: int) -> Tensor: ...


class Passes(Protocol):
    """Provides the graph of some rows when it is ready; asked before every pass."""

    def poll(self) -> None: ...

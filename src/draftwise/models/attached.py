"""What may be attached to the rows of a model: watchers of its passes, and its compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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

    `span` is the first and last row, and the size of the buffers `keys` that they are `parts` of.
    """

    span: tuple[int, int, int, int]
    keys: list[Tensor]
    parts: list[Tensor]


class Graph(Protocol):
    """The compiled passes of a model (see `draftwise.models.compiled`)."""

    def __call__(self, rows: Any, ids: Tensor, named: dict[str, Any], keep: int) -> Tensor: ...
    def step(self, rows: Any, tokens: Sequence[int], keep: int) -> Tensor: ...


class Passes(Protocol):
    """Provides the graph of some rows when it is ready; asked before every pass."""

    def poll(self) -> None: ...

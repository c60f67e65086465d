"""Additive attention masks: which slots each token of a pass may attend to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .traits import View, Views

BANDED = (32, 4096)  # widest pass and longest text whose mask is cached: at most 1 MB per width


class Masks:
    """Attention masks of one model; up to `all_of` tokens of a text all layers see everything, beyond that
    `views`."""

    def __init__(self, views: Views, all_of: int, dtype: torch.dtype, device: torch.device) -> None:
        self.views, self.all_of, self.device = views, all_of, device
        self.late = isinstance(views, View) and views.late
        self._least = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=device)
        self._bands: dict[int, Tensor] = {}

    def keeps(self, width: int, total: int) -> bool:
        """Whether the mask of even rows of this width is cached."""
        return width <= BANDED[0] and total <= BANDED[1] and self.device.type == "cpu"

    def band(self, width: int, total: int, positions: Tensor) -> Tensor:
        """The mask of even rows without windows: a view of a mask that is made once per width."""
        positions = positions[: BANDED[1]]
        if width not in self._bands or self._bands[width].shape[-1] < total:
            at = positions[-width:]
            self._bands[width] = self._additive(positions > at[:, None])[None, None]
        band = self._bands[width]
        return band[..., band.shape[-1] - total :]

    def build(self, unseen: Tensor, places: Tensor, here: Tensor, prompts: Tensor) -> Any:
        """The mask, or one per kind of layer if they differ; windows and chunks are computed from positions.

        `places` are the positions of the tokens in the slots, `here` those of the pass, `prompts` the lengths
        of the rows' prompts, shaped to broadcast to the (rows, 1, width, total) of `unseen`.
        """
        if unseen.shape[-1] <= self.all_of:
            return self._additive(unseen)
        if isinstance(self.views, View):
            return self._additive(unseen | self.views.hides(places, here, prompts))
        views = set(self.views.values())
        masks = {view: self._additive(unseen | view.hides(places, here, prompts)) for view in views}
        return {kind: masks[view] for kind, view in self.views.items()}

    def _additive(self, unseen: Tensor) -> Tensor:
        return unseen * self._least


def ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Return whether node j is node i or one of its ancestors, shape (nodes, nodes); a row's sum is its
    depth."""
    visible = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            visible[node] |= visible[parent]
    return visible


def tree_attention(
    starts: Sequence[int], width: int, lengths: Sequence[int], trees: Mapping[int, Sequence[int]]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], list[tuple[int, int, NDArray[np.bool_]]]]:
    """Return the tree attention mask of a pass in which some texts end in trees (see `PassInput`).

    That is which tokens of the pass each of them sees, shape (rows, width, width), their positions, shape
    (rows, width), and for each tree that grows its row, its nodes in the cache, and all ancestors.
    """
    visible = np.tri(width, dtype=bool)[None].repeat(len(starts), 0)
    places = np.add.outer(starts, np.arange(width))
    older: list[tuple[int, int, NDArray[np.bool_]]] = []
    for row, parents in trees.items():
        end, old = lengths[row], max(0, len(parents) - lengths[row])
        begin, family = end - len(parents) + old, ancestors(parents)
        visible[row, begin:end, begin:end] = family[old:, old:]
        places[row, begin:end] = starts[row] - old + begin - 1 + family[old:].sum(1)
        if old:
            older.append((row, old, family))
    return visible, places, older

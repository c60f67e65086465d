"""Additive attention masks: what each token of a pass may see of the slots."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .windows import View, Views

BANDED = (32, 4096)  # widest pass and longest text whose mask is kept: at most 1 MB a width


class Masks:
    """Masks of one model, whose layers see `views` of a text, and all of one of up to `all_of` tokens."""

    def __init__(self, views: Views, all_of: int, dtype: torch.dtype, device: torch.device) -> None:
        self.views, self.all_of, self.device = views, all_of, device
        self.late = isinstance(views, View) and views.late
        self._least = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=device)
        self._bands: dict[int, Tensor] = {}

    def keeps(self, width: int, total: int) -> bool:
        """Whether rows of this width that start together have a band."""
        return width <= BANDED[0] and total <= BANDED[1] and self.device.type == "cpu"

    def band(self, width: int, total: int, positions: Tensor) -> Tensor:
        """The mask of rows that start together and see all: a view of a band made once per width."""
        if width not in self._bands or self._bands[width].shape[-1] < total:
            at = positions[-width:]
            self._bands[width] = self.hidden(positions > at[:, None])[None, None]
        band = self._bands[width]
        return band[..., band.shape[-1] - total :]

    def made(self, unseen: Tensor, places: Tensor, here: Tensor, prompts: Tensor) -> Any:
        """The mask, by kind of layer where they differ; windows and chunks go by position.

        `places` are the positions of what lies in the slots, `here` those of the pass, `prompts` the lengths
        of the rows' prompts, shaped to broadcast to the (rows, 1, width, total) of `unseen`.
        """
        if unseen.shape[-1] <= self.all_of:
            return self.hidden(unseen)
        if isinstance(self.views, View):
            return self.hidden(unseen | self.views.hides(places, here, prompts))
        views = set(self.views.values())
        made = {view: self.hidden(unseen | view.hides(places, here, prompts)) for view in views}
        return {kind: made[view] for kind, view in self.views.items()}

    def hidden(self, unseen: Tensor) -> Tensor:
        """The least number where `unseen`, else zero."""
        return unseen * self._least

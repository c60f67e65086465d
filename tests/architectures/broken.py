"""Mistakes that a decoder could make, to show that the sweep would see them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise.models.runner import ModelRunner
from draftwise.targets.hf import HFTarget


def forgets(patch: pytest.MonkeyPatch) -> None:
    """The newest token of each row is lost from the cache."""
    commit = HFTarget.commit

    @torch.inference_mode()
    def broken(self: HFTarget, batch: Any) -> None:
        commit(self, batch)
        for layer in self.runner.cache._rows:
            for row, held in enumerate(self.runner.cached_lengths):
                layer.keys[row, :, held - 1] = layer.values[row, :, held - 1] = 0

    patch.setattr(HFTarget, "commit", broken)


def misplaced(patch: pytest.MonkeyPatch) -> None:
    """Tokens after the first pass are told places one too far."""
    places = ModelRunner._places

    def broken(self: ModelRunner, starts: list[int], *rest: Any) -> Any:
        positions, mask = places(self, starts, *rest)
        return positions + (min(starts) > 0), mask

    patch.setattr(ModelRunner, "_places", broken)


MISTAKES = {"forgets": forgets, "misplaced": misplaced}

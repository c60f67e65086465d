"""Chunks of state-space layers fit the pass, and are the model's own again after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from draftwise.models.runner import PassInput
from draftwise.models.runner.states import CHUNK, StateRunner, chunk_sizes, short_chunks
from tests.targets.test_hybrids import model


class Chunk(nn.Module):
    def __init__(self, size: object) -> None:
        super().__init__()
        self.chunk_size = size


@pytest.mark.parametrize(("width", "size"), [(1, 16), (16, 16), (17, 32), (100, 128), (256, 256), (999, 256)])
def test_a_chunk_is_as_long_as_the_pass(width: int, size: int) -> None:
    parts = Chunk(256), Chunk(CHUNK), Chunk(None), Chunk(True), Chunk(64)
    found = chunk_sizes(nn.Sequential(*parts))
    assert list(found.values()) == [256, 64]
    with pytest.raises(ZeroDivisionError), short_chunks(found, width):
        assert parts[0].chunk_size == size and parts[4].chunk_size == min(size, 64)
        1 / 0  # noqa: B018
    assert [part.chunk_size for part in parts] == [256, CHUNK, None, True, 64]


@torch.inference_mode()
def test_logits_are_those_of_whole_chunks() -> None:
    made, said = model("bamba"), []
    for whole in (True, False):
        rows = StateRunner(made)
        assert list(rows.chunked.values()) == [32]
        if whole:
            rows.chunked = {}
        rows.open(0)
        said += [
            torch.cat(
                [
                    rows.forward(PassInput(0, [[5, 9, 17]], 3)).logits,
                    rows.forward(PassInput(0, [[30, 8]], 2)).logits,
                ],
                dim=1,
            )
        ]
    torch.testing.assert_close(said[0], said[1], rtol=1e-4, atol=1e-5)

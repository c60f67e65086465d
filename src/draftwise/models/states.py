"""The hidden states that a model's output layer reads, for whoever decides by them."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..errors import UserError
from .hidden_states import unhook


class States:
    """What the output layer of a model read in its latest pass, shape (rows, positions, width).

    It is the last hidden state, after the final norm: Transformers' `hidden_states[-1]`, at those positions
    only whose logits were asked for. The model's hook goes when this object does.

    Raises:
        UserError: the model has no output layer of its own.
    """

    def __init__(self, model: Any) -> None:
        layer = model.get_output_embeddings()
        if layer is None:
            raise UserError(f"{type(model).__name__} has no output layer to read hidden states at")
        self._latest: list[Tensor] = []
        self._aside: list[Tensor] = []
        weakref.finalize(self, unhook, [layer.register_forward_pre_hook(_into(self._latest))])

    @property
    def latest(self) -> Tensor | None:
        """The states of the latest pass, if there was one."""
        return self._latest[0] if self._latest else None

    def set_aside(self, row: int) -> None:
        """Remember the latest pass, of one row, beside those of the rows before it."""
        del self._aside[row:]  # of rows that were not joined, since something raised
        self._aside.append(self._latest[0][0])

    def join(self) -> None:
        """Have of all that was set aside what one pass over these rows would have left."""
        self._latest[:] = [pad_sequence(self._aside, batch_first=True)]
        self._aside.clear()


def _into(latest: list[Tensor]) -> Any:
    def take(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        latest[:] = inputs[:1]

    return take

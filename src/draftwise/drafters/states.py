"""The hidden states that a model's output layer reads, for whoever decides by them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..errors import UserError


class States:
    """What the output layer of a model read in its latest pass, shape (rows, positions, width).

    It is the last hidden state, after the final norm: Transformers' `hidden_states[-1]`, at those positions
    only whose logits were asked for.

    Raises:
        UserError: the model has no output layer of its own.
    """

    def __init__(self, model: Any) -> None:
        layer = model.get_output_embeddings()
        if layer is None:
            raise UserError(f"{type(model).__name__} has no output layer to read hidden states at")
        self.latest: Tensor | None = None
        layer.register_forward_pre_hook(self._take)

    def _take(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.latest = inputs[0]

"""Passes as the model itself computes them, operation by operation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from ...attention import shared_heads
from ...modes import evaluating
from ..hidden_states import LayerHooks
from ..passes import Executor, PassInput, PreparedPass, States


class Eager(Executor):
    """Calls the model; runs every pass. Hidden states are taken by hooks on the model's layers."""

    hooks: LayerHooks | None = None

    def hook(self, model: Any, layers: tuple[int, ...]) -> None:
        """Return the hidden states of these layers from now on; UserError if the model has no such layer."""
        self.hooks = LayerHooks(model, layers)

    def executor_for(self, runner: Any, given: PassInput) -> Executor:
        return self

    def run(self, runner: Any, prepared: PreparedPass) -> tuple[Tensor, States]:
        """Call the model; another one that is given has no hidden states to return, a head its own."""
        output = self._call(runner, prepared)
        if runner.reads_states:
            return output.logits, {-1: output.states}
        states = dict(self.hooks.latest) if self.hooks and prepared.model is None else {}
        return output.logits, states

    def _call(self, runner: Any, prepared: PreparedPass) -> Any:
        with shared_heads(), self._evaluating(runner):
            prepared.arguments[runner.cache_name] = runner.cache
            model = prepared.model or runner.model
            return model(input_ids=prepared.ids, use_cache=True, **prepared.arguments)

    def _evaluating(self, runner: Any) -> AbstractContextManager[None]:
        """No dropout in a pass; what the model's own decoding would write with it is no text to reproduce."""
        return evaluating(runner.model) if runner.training or runner.model.training else nullcontext()

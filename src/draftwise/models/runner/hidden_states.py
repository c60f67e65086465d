"""Hidden states: taken from the passes of a model by hooks, and kept for drafters that read them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...core.drafts import Draft
from ...errors import UserError
from .passes import States

LEAST = 64  # initial number of positions in a text's buffer; doubled when full


class HiddenStates:
    """The hidden states of committed text at some layers, side by side: layers * width numbers per token.

    Layers are numbered as for `ModelRunner.request_hidden_states`. A text is kept until it is closed.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._texts: dict[int, Tensor] = {}
        self._lengths: dict[int, int] = {}

    def length(self, request_id: int) -> int:
        """Return the number of positions recorded for a text, from its start."""
        return self._lengths.get(request_id, 0)

    def of(self, request_id: int, start: int, end: int) -> Tensor:
        """Return the states of positions `start` to `end` (exclusive), shape (positions, layers * width)."""
        return self._texts[request_id][start:end]

    @torch.inference_mode()
    def record(self, request_id: int, states: States, row: int, which: Any, start: int) -> None:
        """Record positions of a pass: `which` of its row, a slice or indices, from position `start` on.

        A text that was open before recording began has a gap at its start, and is not recorded.
        """
        if start > self.length(request_id) or not states:
            return
        device = states[self.layers[0]].device
        new = [states[layer][row, which].to(device) for layer in self.layers]
        self.put(request_id, start, torch.cat(new, dim=-1))

    def put(self, request_id: int, start: int, new: Tensor) -> None:
        end = start + len(new)
        text = self._texts.get(request_id)
        if text is None or len(text) < end:
            room = new.new_empty(max(LEAST, 2 * end), new.shape[1])
            if text is not None:
                room[:start] = text[:start]
            self._texts[request_id] = text = room
        text[start:end] = new
        self._lengths[request_id] = end

    @torch.inference_mode()
    def share(self, request_id: int, other: int, length: int) -> None:
        """Copy the first positions of another text, whose tokens must be the same there.

        A text that was open before recording began has none.
        """
        if 0 < length <= self.length(other):
            self._texts[request_id] = self._texts[other][: max(LEAST, length)].clone()
            self._lengths[request_id] = length

    def close(self, request_id: int) -> None:
        self._texts.pop(request_id, None)
        self._lengths.pop(request_id, None)


class Source(Protocol):
    """A target that provides hidden states of committed text, and whose modules a drafter may use.

    If a drafter sets `guesses` to a dictionary, it holds for each open text the last verified draft and the
    target's most likely token after the text and after each node.
    """

    runner: Any
    vocab_size: int
    guesses: dict[int, tuple[Draft, list[int]]] | None

    def hidden_states(self, layers: Sequence[int]) -> HiddenStates: ...


class LayerHooks:
    """The hidden states of a model's latest pass at some layers, which hooks put into `latest`.

    The hooks are removed when this object is deleted.

    Raises:
        UserError: the model has no such layer.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self.latest: States = {}
        body = model.get_decoder()
        depth = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        wrong = next((layer for layer in layers if not -1 <= layer < depth), None)
        if wrong is not None:
            raise UserError(
                f"layer {wrong}: this target has the layers 0 to {depth - 1}, and -1 for the last"
            )
        self.handles = hooks = list[RemovableHandle]()
        weakref.finalize(self, _remove, hooks)
        for layer in layers:
            if layer < 0:
                body = model.base_model if body is model else body
                hooks.append(body.register_forward_hook(partial(_take_output, self.latest, layer)))
            else:
                block = layers_of(model)[layer]
                take = partial(_take_input, self.latest, layer)
                hooks.append(block.register_forward_pre_hook(take, with_kwargs=True))


def _remove(hooks: Sequence[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def layers_of(model: Any) -> nn.ModuleList:
    """Return the decoder layers of a model; UserError if it shows no list of them."""
    body, depth = model.get_decoder(), int(model.config.get_text_config(decoder=True).num_hidden_layers)
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise UserError(f"{type(body).__name__} shows no list of its {depth} layers: choose another drafter")


def _take_output(latest: States, layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
    latest[layer] = output[0]


def _take_input(latest: States, layer: int, module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
    latest[layer] = inputs[0] if inputs else named["hidden_states"]

"""The target's hidden states of committed text, kept for drafters that read them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle

from ..core.drafts import Draft
from ..errors import UserError
from .runner import Rows


class Source(Protocol):
    """A target that provides hidden states of committed text, and whose modules a drafter may use.

    If a drafter sets `guesses` to a dictionary, it holds for each open text the last verified draft and the
    target's most likely token after the text and after each node.
    """

    rows: Rows
    vocab_size: int
    guesses: dict[int, tuple[Draft, list[int]]] | None

    def features(self, layers: Sequence[int]) -> Features: ...


LEAST = 64  # initial number of positions in a text's buffer; doubled when full


class Features:
    """Hidden states of one model at chosen layers, for every position in its KV cache.

    `layers` are numbered like Transformers' `hidden_states`: 0 is the embedding, k the output of the k-th
    layer, -1 the last after the final norm. The states are recorded by hooks during normal passes, and kept
    until a text is closed: layers * width numbers per token. The hooks are removed when this object is
    deleted.

    Raises:
        UserError: the model has no such layer.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        body = model.get_decoder()
        depth = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        wrong = next((k for k in layers if not -1 <= k < depth), None)
        if wrong is not None or not layers:
            raise UserError(
                f"layer {wrong}: this target has the layers 0 to {depth - 1}, and -1 for the last"
            )
        self._parts: list[Tensor] = [torch.empty(0)] * len(layers)
        self._texts: dict[int, Tensor] = {}
        self._held: dict[int, int] = {}
        self._aside: list[list[Tensor]] = []
        self._steps: list[Tensor] = []
        hooks: list[RemovableHandle] = []
        weakref.finalize(self, unhook, hooks)
        for place, k in enumerate(layers):
            if k < 0:
                hooks.append(body.register_forward_hook(_last(self._parts, place)))
            else:
                block = _blocks(body, depth)[k]
                take = _input(self._parts, place)
                hooks.append(block.register_forward_pre_hook(take, with_kwargs=True))

    def held(self, key: int) -> int:
        """The number of positions recorded for a text, from its start."""
        return self._held.get(key, 0)

    def of(self, key: int, start: int, end: int) -> Tensor:
        """The features of positions `start` to `end` (exclusive), shape (positions, layers * width)."""
        return self._texts[key][start:end]

    @torch.inference_mode()
    def keep(self, key: int, row: int, which: Any, start: int) -> None:
        """Record positions from the latest pass: `which` of its row, a slice or indices, from `start` on.

        A text that was open before recording began has a gap at its start, and is not recorded.
        """
        if start > self.held(key):
            return
        new = [part[row, which].to(self._parts[0].device) for part in self._parts]
        self.put(key, start, torch.cat(new, dim=-1))

    def put(self, key: int, start: int, new: Tensor) -> None:
        """Record states of a text from position `start` on, shape (positions, layers * width)."""
        end = start + len(new)
        text = self._texts.get(key)
        if text is None or len(text) < end:
            room = new.new_empty(max(LEAST, 2 * end), new.shape[1])
            if text is not None:
                room[:start] = text[:start]
            self._texts[key] = text = room
        text[start:end] = new
        self._held[key] = end

    def set_aside(self, row: int, at: int, width: int) -> None:
        """Store the last `width` positions of row `at` of the latest pass as those of `row`."""
        del self._aside[row:]  # left by rows that were not joined, because something raised
        self._aside.append([part[at][-width:] for part in self._parts])

    def join(self) -> None:
        """Combine what was set aside into what one pass over these rows would have left."""
        rows = zip(*self._aside, strict=True)
        self._parts[:] = [pad_sequence(list(parts), batch_first=True) for parts in rows]
        self._aside.clear()

    def trim(self, width: int) -> None:
        """Drop all but the last `width` positions of the latest pass."""
        self._parts[:] = [part[:, -width:] for part in self._parts]

    def append(self, step: int) -> None:
        """Add the latest pass to those of the steps before it."""
        if step:
            self._parts[:] = [torch.cat(pair, dim=1) for pair in zip(self._steps, self._parts, strict=True)]
        self._steps = list(self._parts)

    @torch.inference_mode()
    def share(self, key: int, other: int, length: int) -> None:
        """Copy the first positions of another text, whose tokens must be the same there."""
        self._texts[key] = self._texts[other][: max(LEAST, length)].clone()
        self._held[key] = length

    def close(self, key: int) -> None:
        """Drop a text."""
        self._texts.pop(key, None)
        self._held.pop(key, None)


def unhook(hooks: Sequence[RemovableHandle]) -> None:
    """Remove the hooks from a model."""
    for hook in hooks:
        hook.remove()


def _blocks(body: Any, depth: int) -> nn.ModuleList:
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise UserError(f"{type(body).__name__} shows no list of its {depth} layers to read features from")


def _last(parts: list[Tensor], place: int) -> Any:
    def take(module: nn.Module, inputs: Any, output: Any) -> None:
        parts[place] = output[0]

    return take


def _input(parts: list[Tensor], place: int) -> Any:
    def take(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        parts[place] = inputs[0] if inputs else named["hidden_states"]

    return take


class States:
    """The input of a model's output layer in its latest pass, shape (rows, positions, width).

    This is the last hidden state after the final norm, Transformers' `hidden_states[-1]`, at the positions
    whose logits were computed. The hook is removed when this object is deleted.

    Raises:
        UserError: the model has no output layer of its own.
    """

    def __init__(self, model: Any) -> None:
        layer = model.get_output_embeddings()
        if layer is None:
            raise UserError(f"{type(model).__name__} has no output layer to read hidden states at")
        self._latest: list[Tensor] = []
        self._aside: list[Tensor] = []
        self._steps: list[Tensor] = []
        weakref.finalize(self, unhook, [layer.register_forward_pre_hook(_into(self._latest))])

    @property
    def latest(self) -> Tensor | None:
        """The states of the latest pass, if there was one."""
        return self._latest[0] if self._latest else None

    def set_aside(self, row: int, at: int, width: int) -> None:
        """Store the last `width` positions of row `at` of the latest pass as those of `row`."""
        del self._aside[row:]  # left by rows that were not joined, because something raised
        self._aside.append(self._latest[0][at][-width:])

    def join(self) -> None:
        """Combine what was set aside into what one pass over these rows would have left."""
        self._latest[:] = [pad_sequence(self._aside, batch_first=True)]
        self._aside.clear()

    def trim(self, width: int) -> None:
        """Drop all but the last `width` positions of the latest pass."""
        self._latest[:] = [part[:, -width:] for part in self._latest]

    def append(self, step: int) -> None:
        """Add the latest pass to those of the steps before it."""
        if step:
            self._latest[:] = [torch.cat((*self._steps, *self._latest), dim=1)]
        self._steps = list(self._latest)


def _into(latest: list[Tensor]) -> Any:
    def take(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        latest[:] = inputs[:1]

    return take

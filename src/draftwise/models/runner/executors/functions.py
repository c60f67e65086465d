"""Passes and drafts as functions of tensors alone, which an executor captures, compiles or calls.

No number of a text is in their code: ids, the lengths of rows and the parents of trees are inputs, so that a
recording of a function runs every pass of its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ...attention import shared_heads
from ...compiled.trace import PassLayer
from ...distributions import top_tokens, whole_vocabulary
from ..drafts import DraftShape, TreeShape, run_draft, run_tree
from ..passes import States
from ..runner import ModelRunner


class Computed(NamedTuple):
    """What a model computes in a pass: logits, a head's own states, and hidden states by layer."""

    logits: Tensor
    states: Tensor | None
    hidden_states: States


Pairs = Mapping[int, tuple[Tensor, Tensor]]
"""Keys and values by layer."""
Kernels = Callable[[Tensor, Tensor, Any, Tensor, Pairs, Tensor | None], Computed]
"""Computes a model's passes in its place, from ids, positions, a mask or one for each kind of layer, slots,
keys and values, and states, as `call_model` makes them."""


class PassShape(NamedTuple):
    """A class of passes that one graph runs, for rows of the KV cache from `first` on."""

    rows: int
    width: int
    slots: int
    has_tree: bool = False
    first: int = 0

    @property
    def kind(self) -> str:
        return "passes of trees" if self.has_tree else "passes of chains"


def run_pass(
    runner: ModelRunner,
    kernels: Kernels | None,
    shape: PassShape,
    layers: Sequence[int],
    numbers: Tensor,
    span: Tensor,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    """A pass as a function of integers, shape (rows, 1 + width), or (rows, 1 + 2 width) with parents.

    `tensors` are what a head reads beside them, shape (rows, width, size), and the KV cache. Returns the
    logits, shape (rows, width, vocabulary), the most likely tokens, shape (rows, width), and the hidden
    states that the runner was asked for.
    """
    starts, ids = numbers[:, :1], numbers[:, 1 : shape.width + 1]
    states, cache = (tensors[0], tensors[1:]) if runner.reads_states else (None, tensors)
    tree = None
    if shape.has_tree:
        visible = ancestors(numbers[:, shape.width + 1 :])
        tree = visible, starts - 1 + visible.sum(-1)
    output = call_model(runner, kernels, layers, ids, starts, tree, span, cache, states)
    outputs = output.logits, top_tokens(output.logits)
    if output.states is not None:
        return *outputs, output.states
    return (*outputs, *(output.hidden_states[layer] for layer in runner.layers))


def call_model(
    runner: ModelRunner,
    kernels: Kernels | None,
    layers: Sequence[int],
    ids: Tensor,
    starts: Tensor,
    tree: tuple[Tensor, Tensor] | None,
    span: Tensor,
    cache: Sequence[Tensor],
    states: Tensor | None,
) -> Computed:
    """The output for tokens, shape (rows, width), that follow the first `starts` slots, shape (rows, 1).

    Of a `tree` they are the last nodes, and those before them follow the `starts` slots: which nodes each
    token sees, shape (rows, width, nodes), and the positions of the nodes, shape (rows, nodes). `span` are
    the visible slots, `cache` keys and values of each of the `layers` in turn, and `states` what a head reads
    beside the tokens.
    """
    (rows, width), total = ids.shape, span.shape[0]
    if tree is None:
        here = slots = starts + span[:width]
        unseen, places = span > slots[..., None], span.expand(rows, -1)
    else:
        visible, positions = tree
        nodes = starts + span[: visible.shape[2]]
        here, slots = positions[:, -width:], nodes[:, -width:]
        unseen = (span > slots[..., None]).scatter(2, nodes[:, None].expand(-1, width, -1), ~visible)
        places = span.expand(rows, -1).scatter(1, nodes, positions)
    at = here[:, None, :, None]
    mask = runner.masks.build(unseen[:, None], places[:, None, None], at, at)
    pairs = dict(zip(layers, zip(cache[::2], cache[1::2], strict=True), strict=True))
    # Padding may be beyond the last position that the model has an embedding for.
    here = here.clamp(max=runner.max_length - 1)
    if kernels is not None:
        return kernels(ids, here, mask, slots, pairs, states)
    depth = len(runner.cache.rows)
    parts: Any = [PassLayer(pairs.get(layer), slots, total, width) for layer in range(depth)]
    named: dict[str, Any] = {runner.cache_name: Cache(layers=parts), "use_cache": True}
    named |= {"position_ids": here, "attention_mask": mask}
    if states is not None:
        named |= {"states": states, "logits_to_keep": width}
    with shared_heads():
        output = runner.model(input_ids=ids, **named)
    own, hooks = output.states if runner.reads_states else None, runner.eager.hooks
    return Computed(output.logits, own, dict(hooks.latest) if hooks else {})


def draft_chains(
    runner: ModelRunner,
    kernels: Kernels | None,
    shape: DraftShape,
    layers: Sequence[int],
    vocab_size: int,
    size: int,
    allowed: Tensor | None,
    drafted: Tensor | None,
    numbers: Tensor,
    span: Tensor,
    logits: Tensor,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    """A draft as a function of settings, logits and, for a head, states; its last own ones are returned."""
    starts = numbers[:, :1].long()
    states, cache = (tensors[0][:, None], tensors[1:]) if runner.reads_states else (None, tensors)

    def read(ids: Tensor, step: int) -> Tensor:
        nonlocal states
        output = call_model(runner, kernels, layers, ids, starts + step, None, span, cache, states)
        states = output.states
        return whole_vocabulary(output.logits[:, 0], drafted, vocab_size)

    outputs = run_draft(
        read, shape, numbers[:, 1:], logits, vocab_size=vocab_size, size=size, allowed=allowed
    )
    return outputs if states is None else (*outputs, states[:, 0])


def draft_trees(
    runner: ModelRunner,
    kernels: Kernels | None,
    shape: TreeShape,
    layers: Sequence[int],
    drafted: Tensor | None,
    starts: Tensor,
    span: Tensor,
    logits: Tensor,
    states: Tensor,
    *cache: Tensor,
) -> tuple[Tensor, ...]:
    """Trees of a head as a function of the lengths of rows, logits and states; see `read_levels`."""
    own = states[:, None]

    def read(nodes: Tensor, above: Tensor, visible: Tensor, done: int) -> Tensor:
        nonlocal own
        before = own.expand(-1, shape.top, -1) if not done else own
        own = before.gather(1, above[..., None].expand(-1, -1, own.shape[2]))
        positions = starts + span[: done + shape.top] // shape.top
        output = call_model(runner, kernels, layers, nodes, starts, (visible, positions), span, cache, own)
        assert output.states is not None  # a head's
        own = output.states
        return whole_vocabulary(output.logits, drafted, logits.shape[1])

    return (run_tree(read, shape, logits),)


def ancestors(parents: Tensor) -> Tensor:
    """Return whether token j is token i or one of its ancestors, shape (rows, width, width).

    `parents` are places within the pass, shape (rows, width); -1 is none. Paths of up to 2^k steps are two of
    up to 2^(k-1) steps.
    """
    width = parents.shape[1]
    columns = torch.arange(width, device=parents.device)
    paths = ((columns == parents[..., None]) | (columns == columns[:, None])).float()
    for _ in range(ceil(log2(max(2, width)))):
        paths = torch.bmm(paths, paths).clamp(max=1.0)
    return paths > 0.5

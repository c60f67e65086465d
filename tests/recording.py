"""Stands in for the capture of CUDA graphs on a CPU: what a recording gets wrong, a graph would.

`record` keeps a function's operations, with every number of the first call that is not computed from its
inputs, and replays them on the same inputs; a replay overwrites the outputs of all others, as graphs do that
share their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from draftwise.core.drafts import Draft
from draftwise.models.runner import ModelRunner, PassInput
from draftwise.models.runner.executors.cuda_graphs import CudaGraphs
from draftwise.models.runner.executors.device_capture import Capture, Function, Replay, call
from tests.tiny import VOCAB

__all__ = ["agree", "assert_alike", "call", "random_pass", "recorder", "runners", "use_graphs"]


def recorder() -> Capture:
    """A capture whose replays share the memory of their outputs."""
    shared: list[Tensor] = []

    def record(function: Function, inputs: Sequence[Tensor]) -> Replay:
        operations: Callable[..., tuple[Tensor, ...]] = make_fx(function)(*inputs)
        outputs = [torch.empty_like(tensor) for tensor in operations(*inputs)]
        places = [tensor.data_ptr() for tensor in inputs]
        shared.extend(tensor for tensor in outputs if tensor.is_floating_point())

        def replay() -> tuple[Tensor, ...]:
            assert [tensor.data_ptr() for tensor in inputs] == places, "an input has moved"
            results = operations(*inputs)
            for tensor in shared:
                tensor.fill_(torch.nan)
            for tensor, result in zip(outputs, results, strict=True):
                tensor.copy_(result)
            return tuple(outputs)

        return replay

    return record


def use_graphs(runner: ModelRunner, capture: Capture) -> CudaGraphs:
    """Run the passes of a runner as graphs, whose buffers are soon too small."""
    graphs = CudaGraphs(runner, capture=capture, buffers=(2, 16))
    runner.use(graphs)
    return graphs


def runners(made: Any, texts: int, *read: int) -> tuple[ModelRunner, ModelRunner]:
    """Two runners of a model, each with so many texts that begin with these tokens."""
    pair = ModelRunner(made), ModelRunner(made)
    for runner in pair:
        for key in range(texts):
            runner.open(key)
        if read:
            runner.forward(PassInput(0, [[*read]] * texts, 1))
    return pair


def agree(
    graphs: ModelRunner,
    eager: ModelRunner,
    given: PassInput,
    kind: str = "graph",
    near: float | None = None,
) -> None:
    """Assert that both runners have the same logits and hidden states, and that the first has such a pass."""
    with torch.inference_mode():
        theirs, ours = eager.forward(given), graphs.forward(given)
    assert ours.info.kind == kind
    before = max(map(len, given.tokens)) - given.logits_to_keep
    for row, n in enumerate(map(len, given.tokens)):
        kept = slice(max(0, n - before))
        torch.testing.assert_close(ours.logits[row, kept], theirs.logits[row, kept], atol=near, rtol=near)
        for layer, states in theirs.hidden_states.items():
            torch.testing.assert_close(
                ours.hidden_states[layer][row, :n], states[row, :n], atol=near, rtol=near
            )


def random_pass(rng: Random, *, trees: float) -> PassInput:
    """A pass over up to three texts of up to five tokens, of which this share end in trees."""
    texts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 5))] for _ in range(rng.choice([1, 2, 3]))]
    parents = {
        row: [rng.randrange(-1, at) for at in range(len(text) - 1)]
        for row, text in enumerate(texts)
        if len(text) > 1 and rng.random() < trees
    }
    return PassInput(0, texts, max(map(len, texts)), parents=parents or None)


def assert_alike(one: Draft, other: Draft) -> None:
    """Assert that two drafts have the same tokens and distributions, and the signals that the first has."""
    assert one.tokens == other.tokens
    assert one.probs == pytest.approx(other.probs)
    if one.tokens:
        torch.testing.assert_close(torch.stack(list(one.rows)), torch.stack(list(other.rows)))
    if one.dist is not None:
        torch.testing.assert_close(torch.stack(list(one.dist)), torch.stack(list(other.dist)))
    for first, second in zip(one.signals, other.signals, strict=True):
        assert first.chosen == pytest.approx(second.chosen, rel=1e-4)
        if first.top1:
            assert (first.top1, first.top2) == pytest.approx((second.top1, second.top2), rel=1e-5)
        if first.entropy:
            assert first.entropy == pytest.approx(second.entropy, rel=1e-5)

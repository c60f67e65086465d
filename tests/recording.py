"""Stands in for the capture of CUDA graphs on a CPU: what a recording gets wrong, a graph would.

`record` keeps a function's operations, with every number of the first call that is not computed from its
inputs, and replays them on the same inputs; a replay overwrites the outputs of all others, as graphs do that
share their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from draftwise.models.runner.executors.device_capture import Capture, Function, Replay


def call(function: Function, inputs: Sequence[Tensor]) -> Replay:
    """The function itself."""
    return lambda: function(*inputs)


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

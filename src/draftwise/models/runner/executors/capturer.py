"""Provides a runner on a GPU with CUDA graphs that are right, of the kernels that are fastest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from math import inf
from time import perf_counter
from typing import Any

import torch

from ....errors import DraftwiseWarning, one_line
from ...compiled.blueprint import Unfit
from ...compiled.trial import compare
from ..passes import Executor
from ..runner import ModelRunner
from .cuda_graphs import CudaGraphs
from .device_capture import DeviceCapture
from .functions import Kernels

LOG = getLogger(__name__)
TIMED = 5  # passes to compare kernels by


class Capturer:
    """Provides a runner on a GPU with CUDA graphs, or says in `state` why its passes stay eager.

    In the mode "on" they are graphs of TorchInductor's kernels, where these are faster.
    """

    def __init__(self, runner: ModelRunner, mode: str) -> None:
        self.runner, self.mode, self.reason = runner, mode, ""
        self.seconds = 0.0  # of the captures before the first text
        self.make_capture: Callable[[], Any] = partial(DeviceCapture, runner.device)
        self.restart()

    @property
    def state(self) -> str:
        graphs = self.runner.executor
        if not isinstance(graphs, CudaGraphs):
            return f"eager: {self.reason}"
        size = f"{graphs.capture.bytes >> 20} MiB"  # type: ignore[attr-defined]
        parts = [f"{graphs.captures} captured, the first in {self.seconds:.1f} s, in {size}"]
        if graphs.is_full:
            parts.append("no memory for more")
        parts += [f"{kind} without: {reason}" for kind, reason in graphs.refused.items()]
        return f"CUDA graphs{self.kernels.state}: {'; '.join(parts)}"

    def restart(self) -> None:
        """Capture the likely passes, compare their logits with those of eager passes, and use them."""
        runner = self.runner
        runner.executor, self.kernels = runner.eager, Choice(runner, self.make_capture, self.mode)
        try:
            self._use_graphs(runner)
        except Exception as reason:  # whatever the model's code raises, its passes stay eager
            runner.executor = runner.eager
            self.reason = str(reason) if isinstance(reason, Unfit) else one_line(reason)
            if self.mode == "on":
                warnings.warn(f"passes are {self.state}", DraftwiseWarning, stacklevel=2)
        LOG.info("%s", self.state)

    def _use_graphs(self, runner: ModelRunner) -> None:
        begin = perf_counter()
        graphs = CudaGraphs(runner, capture=self.make_capture(), kernels=self.kernels.choose())
        runner.use(graphs)
        graphs.prepare(runner)
        self.seconds = perf_counter() - begin


class Choice:
    """Whether a runner's passes are computed by TorchInductor's kernels: `state` says so, with the gain."""

    def __init__(self, runner: ModelRunner, make_capture: Callable[[], Any], mode: str) -> None:
        self.runner, self.make_capture, self.mode, self.state = runner, make_capture, mode, ""

    def choose(self) -> Kernels | None:
        """TorchInductor's kernels, if they are asked for, right and faster; else None: the model's own code.

        Raises:
            Unfit: the model's own code does not make graphs, or wrong ones.
        """
        self._try(None)
        if self.mode != "on":
            return None
        from .inductor_cuda import InductorKernels

        try:
            kernels = InductorKernels(self.runner)
            self._try(kernels)
        except Unfit as reason:
            self.state = f" of PyTorch's kernels ({reason})"
            warnings.warn(f"passes are CUDA graphs{self.state}", DraftwiseWarning, stacklevel=2)
            return None
        own, compiled = least_seconds(
            self.runner,
            [
                CudaGraphs(self.runner, capture=self.make_capture(), kernels=which)
                for which in (None, kernels)
            ],
        )
        gain = f"{compiled / own:.2f} times the time of PyTorch's, compiled in {kernels.seconds:.0f} s"
        if compiled > own:
            self.state = f" of PyTorch's kernels (TorchInductor's take {gain})"
            return None
        self.state = f" of TorchInductor's kernels ({gain})"
        return kernels

    def _try(self, kernels: Kernels | None) -> None:
        trial = CudaGraphs(self.runner, capture=self.make_capture(), kernels=kernels)
        try:
            compare(self.runner, trial)
        finally:
            trial.graphs.clear()
        if trial.refused or trial.is_full:
            raise Unfit(next(iter(trial.refused.values()), "no memory for graphs"))


@torch.inference_mode()
def least_seconds(runner: ModelRunner, executors: Sequence[Executor]) -> list[float]:
    """The least time of a pass over one token by each executor, of a few in turn."""
    scratches = [runner.scratch(executor) for executor in executors]
    given = runner.blank_pass(1)
    for scratch in scratches:
        scratch.open(0)
        scratch.forward(given)
    least = [inf] * len(executors)
    for _ in range(TIMED):
        for at, scratch in enumerate(scratches):
            begin = perf_counter()
            scratch.forward(given).logits.sum().item()
            least[at] = min(least[at], perf_counter() - begin)
    for scratch in scratches:
        scratch.executor = scratch.eager  # graphs refer to their runner: without gc neither would be freed
    return least

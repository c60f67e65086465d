"""Compiled passes on a CPU: one TorchInductor graph of a model for every batch, width and length.

The graph has dynamic shapes, so nothing is padded, and no weights: it reads those of the loaded model, packed
ones too. A process of its own makes it while eager passes serve; it is kept on disk, and used only if its
logits agree with the eager ones and it is faster on this machine (`draftwise.models.compiled`).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from math import inf, isnan
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....core.passes import PassInfo
from ....errors import DraftwiseWarning, one_line
from ...compiled.blueprint import Blueprint, Unfit, blueprint, named_tensors
from ...compiled.store import find, make
from ...compiled.trial import Trial, try_out
from ...stages import announce
from ...verdicts import SECONDS, finish, trials
from ...weights.layouts import PackedLinear
from ..masks import BANDED
from ..passes import Executor, PassInput, PassOutput, PreparedPass, States
from ..runner import ModelRunner

LOG = getLogger(__name__)
PATIENCE = 20.0  # seconds inside eager passes before a graph is compiled: shorter runs would not gain
Run = Callable[[list[Tensor]], Any]  # a pass as a function of the graph's inputs


class InductorCpu(Executor):
    """Runs passes of one model by a graph in a file; any number of runners of this model may share it.

    Raises:
        Unfit: the file needs a tensor that the model does not have.
    """

    kind = "compiled"

    def __init__(self, path: Path, plan: Blueprint, model: Any) -> None:
        loader: Any = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
        wanted, known = loader.get_constant_fqns(), dict(_tensors(model))
        if missing := sorted(set(wanted) - known.keys()):
            raise Unfit(f"the graph needs {missing[0]}, which the model does not have")
        self.plan, self.weights = plan, {name: known[name] for name in wanted}
        loader.load_constants(self.weights, False, True, True)  # the model's own tensors, not copies
        self.run_graph: Run = loader.run
        self._zeros = torch.zeros(0)
        self._numbers = np.zeros((1, BANDED[0]), np.int64)
        self._ids = torch.from_numpy(self._numbers)  # of a short pass

    def executor_for(self, runner: ModelRunner, given: PassInput) -> Executor:
        """This one for the model itself, if the graph returns the hidden states that are asked for."""
        return self if given.model is None and runner.layers == tuple(self.plan.outputs) else runner.eager

    def try_run(self, runner: ModelRunner, given: PassInput) -> PassOutput | None:
        """Run a few tokens of one text that see all before them, which is what most passes do.

        Only what differs from one pass to the next is prepared, outside of `torch.inference_mode`, since
        entering it would take as long.
        """
        row, tokens, keep = given.row, given.tokens[0], given.logits_to_keep
        width, start = len(tokens), runner.cached_lengths[row]
        cache, total = runner.cache, start + width
        most = min(
            cache.plan.slots, runner.positions.shape[0], runner.masks.all_of, runner.max_length, BANDED[1]
        )
        short = len(given.tokens) == 1 and total <= most and width <= BANDED[0] and not given.parents
        if not short or self.executor_for(runner, given) is not self:
            return None
        begin = perf_counter()
        cache.schedule(row, [start], width, even=True, rows=len(runner.request_ids), slots=0)
        at = runner.positions[start:total][None]
        if width == 1:
            mask = self._open(runner, total).view(1, 1, 1, -1)
        else:
            mask = runner.masks.band(width, total, runner.positions).contiguous()
        self._numbers[0, :width] = tokens
        masks = [mask] * max(1, len(self.plan.kinds))
        last = runner.positions[width - keep : width]
        inputs = [self._ids[:, :width], at, *masks, at, last, *self._buffers(runner)]
        outputs = self.run_graph(inputs if given.states is None else [*inputs, given.states])
        runner.seconds += perf_counter() - begin
        runner.cached_lengths[row] = total
        states = dict(zip(self.plan.outputs, outputs[1:], strict=True)) if self.plan.outputs else {}
        return PassOutput(outputs[0], states, PassInfo(self.kind))

    def run(self, runner: ModelRunner, prepared: PreparedPass) -> tuple[Tensor, States]:
        count, width = prepared.ids.shape
        at = prepared.arguments["position_ids"]
        inputs = [
            prepared.ids,
            (at if at.shape[0] == count else at.expand(count, -1)).contiguous(),
            *self._masks(runner, prepared.arguments["attention_mask"], count, width),
            self._written(runner, count, width),
            runner.positions[width - prepared.columns : width],
            *self._buffers(runner),
        ]
        if self.plan.states:
            inputs.append(prepared.arguments["states"])
        outputs = self.run_graph(inputs)
        return outputs[0], dict(zip(self.plan.outputs, outputs[1:], strict=True))

    def _buffers(self, runner: ModelRunner) -> list[Tensor]:
        """The keys of all layers in the pass's rows, then the values, shape (rows, heads, slots, size).

        They are those of the last pass unless a buffer has grown or the rows are others: slicing them takes
        as long as all else that is prepared for a drafted token.
        """
        cache, plan = runner.cache, runner.cache.plan
        span = (plan.first, plan.last, plan.capacity, plan.slots, plan.buffers)
        if cache.slices is not None and cache.slices[0] == span:
            return cache.slices[1]
        used = [cache.rows[layer[0]] for layer in self.plan.layers]
        for one, (_, *shape) in zip(used, self.plan.layers, strict=True):
            one.allocate(shape, runner.dtype, runner.device)
        whole = (*(one.keys for one in used), *(one.values for one in used))
        parts = [one[plan.first : plan.last] for one in whole]
        cache.slices = ((*span[:4], plan.buffers), parts)
        return parts

    def _masks(self, runner: ModelRunner, mask: Any, count: int, width: int) -> list[Tensor]:
        """One contiguous mask for each kind of layer, shape (rows, 1, width, visible slots)."""
        total = runner.cache.plan.total
        if mask is None:
            mask = self._open(runner, count * width * total).view(count, 1, width, total)
        if isinstance(mask, dict):
            return [_full(mask[kind], count, width, total) for kind in self.plan.kinds]
        return [_full(mask, count, width, total)] * max(1, len(self.plan.kinds))

    def _open(self, runner: ModelRunner, size: int) -> Tensor:
        if self._zeros.numel() < size:
            self._zeros = torch.zeros(2 * size, dtype=runner.dtype, device=runner.device)
        return self._zeros[:size]

    def _written(self, runner: ModelRunner, count: int, width: int) -> Tensor:
        plan = runner.cache.plan
        if plan.even:
            return runner.positions[plan.start : plan.start + width].expand(count, -1).contiguous()
        return torch.from_numpy(plan.at)


def _full(mask: Tensor, count: int, width: int, total: int) -> Tensor:
    return mask.expand(count, 1, width, total).contiguous()


def _tensors(model: Any) -> list[tuple[str, Tensor]]:
    """Every tensor of the model by the name that the graph has for it."""
    named = named_tensors(model)
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            named += [(f"{name}.packed", module.packed), (f"{name}.shape", module.shape)]
    return [(f"model.{name}", tensor.detach()) for name, tensor in named]


class Compiler:
    """Provides a runner with compiled passes once they are ready, right and faster; `state` tells.

    What is compiled in the background is loaded there, and compared with eager passes a pass at a time, each
    before one of the runner's own, so that no text waits for long.
    """

    def __init__(self, runner: ModelRunner, mode: str) -> None:
        self.runner, self.mode, self.state = runner, mode, "eager"
        self.plan: Blueprint | None = None  # None when nothing is left to compile
        self._found: InductorCpu | Unfit | None = None  # what the background has made
        self._trial: Trial | None = None
        self.restart()

    @property
    def name(self) -> str:
        return str(getattr(self.runner.model, "name_or_path", "") or type(self.runner.model).__name__)

    def restart(self) -> None:
        """Take a graph from disk, or make one now, or later, with the outputs that the runner has now."""
        self.runner.executor, self.runner.poll = self.runner.eager, self.poll
        self.state, self._found, self._trial = "eager", None, None
        self.patience = self.runner.seconds + PATIENCE if self.mode == "auto" else inf
        try:
            self.plan = plan_of(self.runner)
            path = find(self.plan)
            if path is None and self.mode == "on":
                announce(f"compiling the passes of {self.name}: this can take minutes")
                path = make(self.plan)
                trials().left = SECONDS  # timing is little beside minutes of compiling
            if path is not None:
                graph = load(path, self.plan, self.runner)
                self._adopt(graph, finish(guarded(try_out(self.runner, graph))))
            elif self.mode == "kept":
                self.runner.poll = None
        except Unfit as reason:
            self._refuse(reason)

    def poll(self) -> bool:
        """Before a pass: after enough eager ones compile in the background, then try what was compiled.

        Returns whether that took time.
        """
        if self._found is not None and self.plan is not None:
            self._try_out(self._found)
            return True
        if self.runner.seconds > self.patience and self.plan is not None:
            self.state, self.patience = "eager; compiling", inf
            threading.Thread(target=self._compile, args=(self.plan,), daemon=True).start()
        return False

    def _try_out(self, graph: InductorCpu | Unfit) -> None:
        """Take the next step of the trial, and adopt or refuse the graph after the last."""
        if isinstance(graph, Unfit):
            self._refuse(graph)
            return
        try:
            self._trial = self._trial or guarded(try_out(self.runner, graph))
            next(self._trial)
        except StopIteration as end:
            self._adopt(graph, end.value)
        except Unfit as reason:
            self._refuse(reason)

    def _compile(self, plan: Blueprint) -> None:
        try:
            found: InductorCpu | Unfit = load(make(plan, behind=True), plan, self.runner)
        except Unfit as reason:
            found = reason
        if plan is self.plan:  # else other outputs were asked for meanwhile
            self._found = found

    def _adopt(self, graph: InductorCpu, ratio: float) -> None:
        """Use a graph from now on, which takes `ratio` times the time of eager passes."""
        self.runner.use(graph)
        self.plan = self._found = self._trial = self.runner.poll = None
        times = "not timed yet against" if isnan(ratio) else f"{ratio:.2f} times the time of"
        self.state = f"compiled: {times} eager passes"
        LOG.info("%s: %s", self.name, self.state)

    def _refuse(self, reason: Unfit) -> None:
        """Stay eager, and say why: aloud if compiling was asked for."""
        self.plan = self._found = self._trial = self.runner.poll = None
        self.state = f"eager: {reason}"
        LOG.info("%s: %s", self.name, self.state)
        if self.mode == "on":
            warnings.warn(f"{self.name} is not compiled ({reason})", DraftwiseWarning, stacklevel=2)


def load(path: Path, plan: Blueprint, runner: ModelRunner) -> InductorCpu:
    """Load a graph with the weights of the runner's model; Unfit if it cannot be loaded."""
    with _guarded():
        return InductorCpu(path, plan, runner.model)


def guarded(trial: Trial) -> Trial:
    """A trial whose errors are reasons not to use the graph."""
    with _guarded():
        return (yield from trial)


@contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AttributeError, TypeError, OSError) as error:  # another build of PyTorch
        raise Unfit(one_line(error)) from error


def plan_of(runner: ModelRunner) -> Blueprint:
    """Return the blueprint of a runner's model.

    Raises:
        Unfit: the model cannot be compiled, or not for this device.
    """
    if runner.device.type != "cpu":
        raise Unfit(f"passes are compiled on a CPU or for CUDA; this is {runner.device.type}")
    return blueprint(runner)

"""TorchInductor's kernels in the graphs of a GPU, compiled for a CPU: one trace for passes of all sizes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.errors import DraftwiseWarning
from draftwise.models.compiled import blueprint as plans
from draftwise.models.compiled.blueprint import Unfit
from draftwise.models.runner import ModelRunner, PassInput
from draftwise.models.runner.executors import capturer as capturing
from draftwise.models.runner.executors import cuda_graphs, inductor_cuda
from draftwise.models.runner.executors.capturer import Capturer
from draftwise.models.runner.executors.cuda_graphs import CudaGraphs
from draftwise.models.runner.executors.device_capture import call
from draftwise.models.runner.executors.exact import Agreement, ExactPasses
from draftwise.models.runner.executors.functions import PassShape
from draftwise.models.runner.executors.inductor_cuda import InductorKernels
from draftwise.targets.hf import HFTarget
from tests.core.turns import loop_with
from tests.drafters.neural.heads import random_eagle
from tests.recording import agree, random_pass
from tests.tiny import VOCAB, model


@pytest.fixture(scope="module")
def made() -> Any:
    return model("qwen3-window", dtype=torch.float32)


@pytest.fixture(scope="module")
def kernels(made: Any) -> InductorKernels:
    """For a model with two kinds of masks, whose hidden states are asked for, too."""
    runner = ModelRunner(made)
    runner.request_hidden_states((1, -1))
    return InductorKernels(runner)


class Called:
    """In place of a capture: the stand-in for a GPU records operations of PyTorch alone."""

    bytes = 0

    def __init__(self, device: torch.device) -> None: ...

    def __call__(self, function: Any, inputs: Any) -> Any:
        return call(function, inputs)


def both(made: Any, kernels: InductorKernels) -> tuple[ModelRunner, ModelRunner]:
    eager, graphs = ModelRunner(made), ModelRunner(made)
    for runner in (eager, graphs):
        runner.request_hidden_states((1, -1))
    graphs.use(CudaGraphs(graphs, capture=call, buffers=(2, 16), kernels=kernels))
    return eager, graphs


def test_passes_of_all_sizes_are_those_of_the_model(
    made: Any, kernels: InductorKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains and trees, one row and several, beyond a window and a class of slots."""
    monkeypatch.setattr(cuda_graphs, "FIRST_SLOTS", 16)
    (eager, graphs), rng, own = both(made, kernels), Random(2), list[int]()
    forward = made.forward

    def counted(**named: Any) -> Any:
        own.append(1)
        return forward(**named)

    monkeypatch.setattr(made, "forward", counted)
    for runner in (eager, graphs):
        for key in range(3):
            runner.open(key)
    for at in range(12):
        given = random_pass(rng, trees=float(at % 3 == 2))
        agree(graphs, eager, given, near=1e-3)
        for row in given.parents or ():
            for runner in (eager, graphs):
                runner.cached_lengths[row] -= len(given.tokens[row])
    assert len(own) == 12, "the model's own code runs in place of the kernels"


def test_no_kernel_of_a_cpu_is_made_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would be compiled, and timed, and is not in the graph."""
    runner = ModelRunner(model("llama"))
    runner.device = torch.device("cuda")  # in name only
    monkeypatch.setattr(plans, "own_attention", None)
    assert not plans.blueprint(runner).own_attention


def test_exact_passes_use_them(made: Any, kernels: InductorKernels) -> None:
    runner = runner_of(made)
    agreement = Agreement(runner, kernels)
    assert agreement.holds(PassShape(1, 32, 512))
    runner.use(ExactPasses(runner, agreement, capture=call))
    rows = []
    for sizes in ([20], [3, 1, 16]):
        runner.open(0)
        text, done, read = [(7 * at) % VOCAB for at in range(20)], 0, []
        with torch.inference_mode():
            for size in sizes:
                output = runner.forward(PassInput(0, [text[done : done + size]], size))
                read.append(output.logits[0])
                done += size
        rows.append(torch.cat(read))
        runner.close(0)
    assert torch.equal(*rows)


def runner_of(made: Any) -> ModelRunner:
    runner = ModelRunner(made)
    runner.request_hidden_states((1, -1))
    return runner


def test_they_are_used_if_they_are_faster(
    made: Any, kernels: InductorKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "DeviceCapture", Called)
    monkeypatch.setattr(inductor_cuda, "InductorKernels", lambda runner: kernels)
    for seconds, words in (([2.0, 1.0], "TorchInductor's kernels (0.50"), ([1.0, 2.0], "PyTorch's kernels")):
        monkeypatch.setattr(capturing, "least_seconds", lambda *given, seconds=seconds: seconds)
        capturer = Capturer(runner_of(made), "on")
        assert capturer.state.startswith("CUDA graphs of " + words), capturer.state


@pytest.mark.parametrize("wrong", [False, True])
def test_without_them_graphs_have_the_models_own_code(
    made: Any, kernels: InductorKernels, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cannot be compiled, or compute something else."""
    monkeypatch.setattr(capturing, "DeviceCapture", Called)

    def flipped(*given: Any) -> Any:
        output = kernels(*given)
        return output._replace(logits=output.logits.flip(-1))

    def find(runner: ModelRunner) -> Any:
        if not wrong:
            raise Unfit("no compiler")
        return flipped

    monkeypatch.setattr(inductor_cuda, "InductorKernels", find)
    runner = runner_of(made)
    with pytest.warns(DraftwiseWarning, match="CUDA graphs of PyTorch's kernels"):
        capturer = Capturer(runner, "on")
    assert ("logits are off" if wrong else "no compiler") in capturer.state
    assert runner.executor.kind == "graph" and runner.executor.kernels is None  # type: ignore[attr-defined]


def test_a_head_is_compiled_with_its_own_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """An EAGLE head whose chains are graphs of these kernels drafts what it drafts eagerly."""
    monkeypatch.setattr(capturing, "DeviceCapture", Called)
    monkeypatch.setattr(capturing, "least_seconds", lambda *given: [2.0, 1.0])
    target = model("llama", dtype=torch.float32)
    texts = []
    for mode in ("off", "on"):
        reads = HFTarget(target)
        head = EagleDrafter(random_eagle(target, eagle3=True), reads)
        if mode == "on":
            head.runner.compiler = Capturer(head.runner, "on")
            assert head.runner.compiler.state.startswith("CUDA graphs of TorchInductor's"), (
                head.runner.compiler.state
            )
        loop = loop_with(reads, {"head": head}, "static-4")
        rounds = list(loop.run([[3, 4, 5, 6]], Sampling(max_new_tokens=24)))
        assert not any(loop.faults.values()), loop.faults
        texts.append([(round.tokens, round.drafted, round.accepted) for round in rounds])
    assert texts[0] == texts[1]

"""The capture of CUDA graphs, on a GPU in name only: memory, failures, and recorded passes."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from draftwise.errors import DraftwiseWarning
from draftwise.models.runner import ModelRunner, PassInput
from draftwise.models.runner.executors import capturer as capturing
from draftwise.models.runner.executors import compile as compiling
from draftwise.models.runner.executors import device_capture
from draftwise.models.runner.executors.capturer import Capturer, least_seconds
from draftwise.models.runner.executors.compile import compile_runner
from draftwise.models.runner.executors.cuda_graphs import CudaGraphs
from draftwise.models.runner.executors.device_capture import SPARE, DeviceCapture, NoRoom
from tests.fake_cuda import FakeCuda, Graph, install
from tests.recording import agree
from tests.tiny import VOCAB, model

CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(device_capture, "FAILED", [])
    return install(monkeypatch)


def captured() -> tuple[ModelRunner, ModelRunner, Capturer]:
    """A runner, another one whose passes are captured, each with a text, and what captured them."""
    made = model("llama")
    eager, graphs = ModelRunner(made), ModelRunner(made)
    capturer = Capturer(graphs, "auto")
    for runner in (eager, graphs):
        runner.open(0)
    return eager, graphs, capturer


def test_passes_of_a_captured_model_are_those_of_the_model(gpu: FakeCuda) -> None:
    """What a graph has baked in stays what it was at the capture: lengths, masks and slots do not."""
    eager, graphs, capturer = captured()
    rng = Random(3)
    assert capturer.state.startswith("CUDA graphs: 8 captured")
    for _ in range(12):
        agree(
            graphs, eager, PassInput(0, [[rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 3, 5]))]], 1)
        )


@pytest.mark.parametrize("mode", ["auto", "kept", "on", "off"])
def test_passes_on_a_gpu_become_graphs_unless_that_is_off(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = SimpleNamespace(runner=ModelRunner(model("llama")))
    part.runner.device = torch.device("cuda")
    monkeypatch.delenv("DRAFTWISE_COMPILE", raising=False)
    monkeypatch.setattr(compiling, "Capturer", lambda runner, mode: mode)
    compile_runner(part, mode)
    assert part.runner.compiler == (None if mode == "off" else mode)


def doubled(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2,)


def test_outputs_of_all_graphs_share_memory(gpu: FakeCuda) -> None:
    """Else each graph would keep logits of its own."""
    capture = DeviceCapture(CPU)
    sizes = range(5, 9)
    replays = [capture(doubled, [torch.arange(float(n))]) for n in sizes]
    outputs = [replay()[0] for replay in replays]
    assert len({one.data_ptr() for one in outputs}) == 1
    assert replays[1]()[0].tolist() == [0, 2, 4, 6, 8, 10]


def test_a_larger_output_leaves_those_of_earlier_graphs_where_they_are(gpu: FakeCuda) -> None:
    capture = DeviceCapture(CPU)
    small, large = capture(doubled, [torch.ones(3)]), capture(doubled, [torch.ones(40)])
    assert small()[0].tolist() == [2.0] * 3 and large()[0].tolist() == [2.0] * 40


def test_a_pool_whose_graphs_are_gone_is_not_used_again(gpu: FakeCuda) -> None:
    def taking(x: Tensor) -> tuple[Tensor, ...]:
        gpu.free -= 100
        return (x,)

    capture = DeviceCapture(CPU)
    replays = [capture(taking, [torch.ones(n)]) for n in (1, 2)]
    assert capture.bytes == 600, "each runs three times"
    replays.clear()
    gc.collect()
    replays.append(capture(taking, [torch.ones(3)]))
    assert gpu.used == [0, 0, 1] and capture.bytes == 300, "nor is its memory counted"


def test_what_is_recorded_has_run_with_waits_forbidden(gpu: FakeCuda) -> None:
    modes: list[str] = []

    def noted(x: Tensor) -> tuple[Tensor, ...]:
        modes.append(gpu.mode)
        return (x + 1,)

    DeviceCapture(CPU)(noted, [torch.ones(2)])
    assert modes == ["default", "error", "default"]
    assert gpu.mode == "default"


def test_after_a_capture_that_fails_everything_is_as_it_was(gpu: FakeCuda) -> None:
    capture, before = DeviceCapture(CPU), gpu.current[0]
    gpu.fault = RuntimeError("capture invalidated")
    with pytest.raises(RuntimeError, match="invalidated"):
        capture(doubled, [torch.ones(2)])
    assert gc.isenabled() and gpu.mode == "default"
    assert gpu.ended == gpu.used and len(device_capture.FAILED) == 1
    assert capture(doubled, [torch.ones(2)])()[0].tolist() == [2.0, 2.0]
    assert before in gpu.current


def test_after_a_capture_that_fails_others_have_a_pool_of_their_own(gpu: FakeCuda) -> None:
    """PyTorch's pool of the host's memory refuses any further capture; graphs that it has go on."""
    capture = DeviceCapture(CPU)
    first = capture(doubled, [torch.ones(2)])
    gpu.fault = RuntimeError("capture invalidated")
    with pytest.raises(RuntimeError, match="invalidated"):
        capture(doubled, [torch.ones(3)])
    second = capture(doubled, [torch.ones(4)])
    assert gpu.used == [0, 0, 1]
    assert first()[0].tolist() == [2.0] * 2 and second()[0].tolist() == [2.0] * 4


def test_a_broken_capture_says_what_broke_it(gpu: FakeCuda) -> None:
    """Not what its end says, which is that something did; and no tensor stays behind with the reason."""
    tensors = list[ReferenceType[Tensor]]()

    def reads(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        tensors.append(ref(y))
        if gpu.mode != "error" and len(tensors) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (y,)

    gc.disable()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            DeviceCapture(CPU)(reads, [torch.ones(2)])
        device_capture.FAILED.clear()  # only this GPU's graphs hold tensors
        assert tensors[-1]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("fails", [False, True])
def test_a_graph_has_a_workspace_of_its_own(gpu: FakeCuda, fails: bool) -> None:
    """One of all graphs and eager passes is freed where `torch.compile` records graphs; this one stays."""
    pools: list[int] = []

    def multiplies(x: Tensor) -> tuple[Tensor, ...]:
        pools.append(gpu.take_workspace())
        if fails and len(pools) == 3:
            raise RuntimeError("not permitted")
        return (x,)

    with pytest.raises(RuntimeError) if fails else nullcontext():
        DeviceCapture(CPU)(multiplies, [torch.ones(2)])
    assert pools == [-1, -1, 0] and gpu.workspace is None


def test_a_graph_is_replayed_once_where_it_is_captured(
    gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first launch takes longer, and may find no memory: neither belongs to a pass."""
    replays, replay = list[Graph](), Graph.replay

    def counted(graph: Graph) -> None:
        replays.append(graph)
        replay(graph)

    monkeypatch.setattr(Graph, "replay", counted)
    DeviceCapture(CPU)(doubled, [torch.ones(2)])
    assert len(replays) == 1


def test_what_refers_to_itself_is_freed_before_memory_counts_as_short(
    gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.free = SPARE - 1

    def collect() -> None:
        gpu.free = SPARE

    monkeypatch.setattr(gc, "collect", collect)
    assert DeviceCapture(CPU)(doubled, [torch.ones(2)])()[0].tolist() == [2.0, 2.0]


def test_captures_leave_memory_to_others(gpu: FakeCuda) -> None:
    gpu.free = SPARE - 1
    with pytest.raises(NoRoom, match="512 MiB"):
        DeviceCapture(CPU)(doubled, [torch.ones(2)])


def test_without_memory_further_shapes_are_eager_and_captured_ones_go_on(gpu: FakeCuda) -> None:
    eager, graphs, capturer = captured()
    gpu.free = 0
    for width, kind in ((2, "graph"), (24, "eager"), (3, "graph"), (33, "eager")):
        agree(graphs, eager, PassInput(0, [[at % VOCAB for at in range(width)]], 1), kind)
    assert "no memory for more" in capturer.state


def test_where_the_cache_has_moved_memory_is_looked_for_again(gpu: FakeCuda) -> None:
    """Graphs of the cache as it was are given up, and so is their memory."""
    eager, graphs, capturer = captured()
    gpu.free = 0
    agree(graphs, eager, PassInput(0, [[at % VOCAB for at in range(24)]], 1), "eager")
    gpu.free = 8 << 30
    for runner in (eager, graphs):
        runner.cache.ready(1, 4096, 0)
    agree(graphs, eager, PassInput(0, [[3] * 24], 1))
    assert "no memory for more" not in capturer.state


def test_a_graph_that_finds_no_memory_itself_is_tried_again_later(gpu: FakeCuda) -> None:
    """CUDA's own error is of another type than that of PyTorch's allocator."""
    eager, graphs, capturer = captured()
    gpu.fault = RuntimeError("CUDA error: out of memory")
    agree(graphs, eager, PassInput(0, [[at % VOCAB for at in range(24)]], 1), "eager")
    assert "no memory for more" in capturer.state
    for runner in (eager, graphs):
        runner.cache.ready(1, 4096, 0)
    agree(graphs, eager, PassInput(0, [[3] * 24], 1))


def test_a_kind_of_pass_that_cannot_be_captured_leaves_the_others_their_graphs(gpu: FakeCuda) -> None:
    eager, graphs, capturer = captured()
    agree(graphs, eager, PassInput(0, [[3]], 1))
    tree = PassInput(0, [[4, 5, 6]], 3, parents={0: [-1, -1]})
    gpu.fault = RuntimeError("operation not permitted\nand more")
    for given, kind in ((tree, "eager"), (PassInput(0, [[7, 8]], 2), "graph"), (tree, "eager")):
        agree(graphs, eager, given, kind)
    assert capturer.state.endswith("passes of trees without: RuntimeError: operation not permitted")


def test_a_model_that_cannot_be_captured_stays_eager_and_says_why_in_one_line(gpu: FakeCuda) -> None:
    class Reads(type(model("llama"))):  # type: ignore[misc]
        """A model whose code depends on its numbers."""

        def forward(self, *args: Any, **named: Any) -> Any:
            out = super().forward(*args, **named)
            if float(out.logits.sum()) > 1e9:
                out.logits = out.logits * 0
            return out

    made = model("llama")
    made.__class__ = Reads
    runner = ModelRunner(made)
    with pytest.warns(DraftwiseWarning, match="passes are eager: .*not permitted"):
        capturer = Capturer(runner, "on")
    assert runner.executor is runner.eager and len(capturer.state.splitlines()) == 1
    runner.open(0)
    assert runner.forward(PassInput(0, [[3]], 1)).info.kind == "eager"


def test_graphs_that_are_no_longer_used_are_freed_at_once(
    gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's memory is full before Python looks for what refers to itself."""
    captures = list[ReferenceType[DeviceCapture]]()

    def capture(device: torch.device) -> DeviceCapture:
        captures.append(ref(one := DeviceCapture(CPU)))
        return one

    monkeypatch.setattr(capturing, "DeviceCapture", capture)
    gc.collect()
    gc.disable()
    try:
        runner = ModelRunner(model("llama"))
        capturer = Capturer(runner, "auto")
        capturer.restart()
        executors = [CudaGraphs(runner, capture=capture(CPU)) for _ in range(2)]
        least_seconds(runner, executors)
        executors.clear()
        alive = [one() for one in captures if one() is not None]
        assert len(captures) == 6 and alive == [runner.executor.capture]  # type: ignore[attr-defined]
    finally:
        gc.enable()


def test_captures_between_passes_are_work_done_once(gpu: FakeCuda) -> None:
    runner = ModelRunner(model("llama"))
    graphs = CudaGraphs(runner, capture=DeviceCapture(CPU))
    runner.use(graphs)
    runner.open(0)
    first = runner.forward(PassInput(0, [[3]], 1))
    spent = runner.setup_seconds
    second = runner.forward(PassInput(0, [[4]], 1))
    assert spent > 0 and runner.setup_seconds == spent
    assert (first.info.is_timed, second.info.is_timed) == (False, True)


def test_the_most_likely_tokens_come_with_the_logits(gpu: FakeCuda) -> None:
    """Of the positions that are kept, computed within the graph: no launches of their own."""
    runner = ModelRunner(model("llama"))
    Capturer(runner, "auto")
    runner.open(0)
    runner.forward(PassInput(0, [[3, 4]], 1))
    output = runner.forward(PassInput(0, [[5, 6, 7]], 2))
    assert output.choices is not None and output.choices.tolist() == output.logits.argmax(-1).tolist()
    assert output.choices.shape == (1, 2)

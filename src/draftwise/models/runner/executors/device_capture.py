"""Captures functions of tensors as CUDA graphs; where that fails, nothing is left behind."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

SPARE = 512 << 20  # bytes of the GPU's memory that captures leave free
FAILED: list[Any] = []  # graphs of broken captures: PyTorch's allocator of host memory may refer to them

Function = Callable[..., tuple[Tensor, ...]]
Replay = Callable[[], tuple[Tensor, ...]]
Capture = Callable[[Function, Sequence[Tensor]], Replay]
"""Makes a replay of a function of tensors that never move; the next replay overwrites its outputs."""


def call(function: Function, inputs: Sequence[Tensor]) -> Replay:
    """A function that is not captured: where there is no GPU, or no graph is wanted."""
    return partial(function, *inputs)


class NoRoom(RuntimeError):
    """The GPU's memory has no room for another graph."""


class DeviceCapture:
    """Captures functions on a GPU, in memory that all graphs of one runner share; `bytes` is what they took.

    Outputs, too, are written to memory that all graphs share, since those that a graph returned would each
    keep memory of their own: logits of 32 rows and 64 tokens take half a gigabyte.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.bytes = device, 0
        self.stream: Any = None
        self.pool: Any = None
        self.graphs = WeakSet[Any]()
        self.outputs: dict[tuple[int, torch.dtype], Tensor] = {}

    def __call__(self, function: Function, inputs: Sequence[Tensor]) -> Replay:
        """Run the function, which prepares its kernels, again with waits forbidden, then record it.

        Raises:
            NoRoom: less than `SPARE` bytes are free.
            RuntimeError: the function waits for the host.
        """
        with torch.cuda.device(self.device):
            free = self._free()
            if free < SPARE:  # runners and their graphs refer to each other
                gc.collect()
                free = self._free()
            if free < SPARE:
                raise NoRoom(f"less than {SPARE >> 20} MiB of the GPU's memory are free")
            self.stream = self.stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            if not self.graphs:  # a pool whose graphs are gone cannot be used again
                self.pool, self.outputs, self.bytes = None, {}, 0
            if self.pool is None:
                self.pool = torch.cuda.graph_pool_handle()
            current = torch.cuda.current_stream()
            self.stream.wait_stream(current)
            try:
                with torch.cuda.stream(self.stream):
                    function(*inputs)
                    with waits_are_errors():
                        places = self._places(function(*inputs))
                    graph = self._record(function, inputs, places)
                    graph.replay()  # the first one moves the graph to the GPU: no time of a pass
            finally:
                current.wait_stream(self.stream)
            self.bytes += max(0, free - self._free())

        used = function, inputs  # a graph does not keep what it reads

        def replay(used: object = used) -> tuple[Tensor, ...]:
            graph.replay()
            return places

        return replay

    def _record(self, function: Function, inputs: Sequence[Tensor], places: Sequence[Tensor]) -> Any:
        graph = torch.cuda.CUDAGraph()
        reason: BaseException | None = None
        collects = gc.isenabled()
        gc.disable()  # what is freed by chance would end the capture
        try:
            # Other threads may allocate meanwhile.
            with (
                workspaces_apart(),
                torch.cuda.graph(
                    graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
                ),
            ):
                try:
                    for place, output in zip(places, function(*inputs), strict=True):
                        place.copy_(output)
                except BaseException as error:
                    reason = error
                    raise
        except BaseException as error:
            with suppress(AttributeError, RuntimeError):  # PyTorch 2.11's `capture_end` leaves this out
                torch._C._cuda_endAllocateToPool(self.device.index or 0, self.pool)
                FAILED.append(graph)
            self.pool = None  # the allocator of host memory has it in use for good, and would refuse a graph
            reason = reason or error
        finally:
            if collects:
                gc.enable()
        if reason is not None:  # the end of a broken capture raises as well, and says less
            try:
                raise reason
            finally:
                reason = None  # it refers to this frame, and so to all tensors of the pass
        self.graphs.add(graph)
        return graph

    def _places(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Where outputs of these shapes are to be written; sizes are rounded up, so that few differ."""
        places = []
        for number, output in enumerate(outputs):
            key, size = (number, output.dtype), max(1, output.numel())
            if key not in self.outputs or self.outputs[key].numel() < size:
                self.outputs[key] = output.new_empty(1 << (size - 1).bit_length())
            places.append(self.outputs[key][: output.numel()].view(output.shape))
        return tuple(places)

    def _free(self) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])


@contextmanager
def workspaces_apart() -> Iterator[None]:
    """Within it, cuBLAS gets new workspaces, which are a graph's own, in its pool.

    PyTorch keeps one for each stream, and frees all where `torch.compile` records graphs of its own: those of
    ours would still write there.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
    try:
        yield
    finally:
        clear()


@contextmanager
def waits_are_errors() -> Iterator[None]:
    """Within it, PyTorch raises where the host would wait for the GPU: clearer than a capture that fails, and
    nothing has to be undone."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it does not find every wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)

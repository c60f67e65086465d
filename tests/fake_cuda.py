"""A GPU in name only: `torch.cuda` as far as captures use it, with graphs that replay recorded operations.

A graph holds the operations that ran while it was recorded, each with the tensors that it read and wrote, and
every Python number as it was. A replay computes them again and writes to the same tensors, as CUDA's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten: Any = torch.ops.aten
WAITS = {aten._local_scalar_dense.default, aten.item.default, aten.nonzero.default}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """Notes operations; a read of a number raises, as in a capture."""

    def __init__(self, into: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.into = into

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.into.append((func, args, kwargs or {}, out))
        return out


class Graph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operations: list[Any] = []

    def replay(self) -> None:
        """Compute everything again."""
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            for held, new in zip(pytree.tree_leaves(out), pytree.tree_leaves(again), strict=True):
                if isinstance(held, Tensor) and held.data_ptr() != new.data_ptr():
                    held.copy_(new)


class Stream:
    """Stands for `torch.cuda.Stream`."""

    def wait_stream(self, other: Any) -> None:
        """Nothing: the CPU's operations are complete at once."""


class FakeCuda:
    """What was asked of the GPU: the pools of graphs, and what the next captures find."""

    def __init__(self) -> None:
        self.free = 8 << 30
        self.pools: list[int] = []
        self.used: list[int] = []  # the pool of every capture
        self.mode = "default"
        self.modes: list[str] = []
        self.fault: Exception | None = None  # of the next capture
        self.stuck: set[int] = set()  # pools of captures that failed
        self.ended: list[int] = []  # pools that captures which failed have let go
        self.workspace: int | None = None  # the pool of that of cuBLAS, -1 for none of a graph
        self.capturing = -1  # the pool of the capture under way
        self.current = [Stream()]

    @contextmanager
    def stream(self, one: Stream) -> Iterator[None]:
        """`torch.cuda.stream`."""
        self.current.append(one)
        yield
        self.current.pop()

    @contextmanager
    def graph(self, graph: Graph, *, pool: int, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        """`torch.cuda.graph`: after a failure its end raises too, and PyTorch's pool is in use for good."""
        assert self.current[-1] is stream and capture_error_mode == "thread_local"
        if pool in self.stuck:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.used.append(pool)
        fault, self.fault = self.fault, None
        self.capturing = pool
        try:
            with Operations(graph.operations):
                yield
                if fault is not None:
                    raise fault
        except Exception:
            self.stuck.add(pool)
            if fault is None:
                raise RuntimeError("operation failed due to a previous error during capture") from None
            raise
        finally:
            self.capturing = -1

    def take_workspace(self) -> int:
        """The pool of cuBLAS's workspace, which a matrix product takes where there is none."""
        self.workspace = self.capturing if self.workspace is None else self.workspace
        return self.workspace

    def clear_workspaces(self) -> None:
        """`torch._C._cuda_clearCublasWorkspaces`."""
        self.workspace = None

    def end_allocation(self, device: int, pool: int) -> None:
        """`torch._C._cuda_endAllocateToPool`: nothing more of the host's comes from a pool."""
        self.ended.append(pool)

    def new_pool(self) -> int:
        """`torch.cuda.graph_pool_handle`."""
        self.pools.append(len(self.pools))
        return self.pools[-1]

    def set_mode(self, mode: str) -> None:
        """`torch.cuda.set_sync_debug_mode`."""
        self.mode = mode
        self.modes.append(mode)


def install(patch: pytest.MonkeyPatch) -> FakeCuda:
    """Put a fake GPU in the place of `torch.cuda`."""
    fake = FakeCuda()
    names: dict[str, Any] = {
        "device": lambda device: nullcontext(),
        "Stream": Stream,
        "CUDAGraph": Graph,
        "current_stream": lambda *device: fake.current[-1],
        "stream": fake.stream,
        "graph": fake.graph,
        "graph_pool_handle": fake.new_pool,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda: (fake.free, 80 << 30),
        "get_sync_debug_mode": lambda: fake.mode,
        "set_sync_debug_mode": fake.set_mode,
    }
    for name, value in names.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch._C, "_cuda_clearCublasWorkspaces", fake.clear_workspaces, raising=False)
    # A CUDA build of PyTorch has a real one, which knows no such pools.
    patch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end_allocation, raising=False)
    return fake

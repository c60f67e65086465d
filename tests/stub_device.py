"""A device in name only: its tensors are on the CPU, and each transfer that a GPU would wait for is counted.

CPU tensors hide transfers: `.tolist()` of one is a plain read. Here every tensor of the device is a wrapper
that names another device, so that the package takes the ways that it takes on a GPU, and every read goes
through PyTorch's dispatcher. Import it in a process of its own: a device is registered for good.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import draftwise

PACKAGE = f"{Path(draftwise.__file__).parent}{os.sep}"
NAME = "stub"
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
aten: Any = torch.ops.aten
READS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.is_nonzero.default, aten.equal.default}


class OnDevice(Tensor):
    """A tensor that says it is on the stub device; `host` has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.host = host
        return made

    def tolist(self) -> Any:
        """The numbers, in one transfer; PyTorch has no such method for subclasses."""
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func} outside of the stub device")


class StubDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook for subclasses has no types
    """While it is active, its work runs on the CPU, and `seen` counts transfers by kind and place.

    Kinds: `read` makes the host wait for the device; `upload` is a copy to the device that waits, as
    PyTorch's copies from ordinary memory do unless they are `non_blocking`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> StubDevice:
        # `torch.tensor(..., device=)` makes its tensor on the CPU and copies it, which the mode sees.
        self.lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(self.lifted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with self:  # in inference mode, what is made of other operations comes whole
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        flat, shape = pytree.tree_flatten((args, kwargs))
        wrappers = {id(x.host): x for x in flat if isinstance(x, OnDevice)}
        wanted = next((x for x in flat if isinstance(x, torch.device)), None)
        here = bool(wrappers) if wanted is None else wanted.type == NAME
        self._note(func, flat, wrappers, wanted, kwargs)
        given, named = pytree.tree_unflatten([_host(x) for x in flat], shape)
        if func is aten._to_copy.default:  # a copy between devices is never the same tensor
            named.pop("non_blocking", None)
        out = func(*given, **named)
        return pytree.tree_map(lambda x: _wrapped(x, wrappers) if here else x, out)

    def _note(
        self, func: Any, flat: Sequence[Any], wrappers: Mapping[int, OnDevice], wanted: Any, named: Any
    ) -> None:
        waits = not named.get("non_blocking", False)
        masks = [x for x in flat[1:] if isinstance(x, OnDevice) and x.dtype == torch.bool]
        if (func in READS and wrappers) or (func is aten.index.Tensor and masks):
            self._count("read", func)
        elif func is aten._to_copy.default and wanted is not None:
            to = wanted.type == NAME
            if wrappers and not to:
                self._count("read", func)
            elif to and not wrappers and waits:
                self._count("upload", func)
        elif func is aten.copy_.default:
            into, source = isinstance(flat[0], OnDevice), isinstance(flat[1], OnDevice)
            if into != source and (source or (flat[1].dim() and not (len(flat) > 2 and flat[2]))):
                self._count("read" if source else "upload", func)

    def _count(self, kind: str, func: Any) -> None:
        frames = [f for f in traceback.extract_stack() if f.filename.startswith(PACKAGE)]
        at = f"{frames[-1].filename.removeprefix(PACKAGE)}:{frames[-1].name}" if frames else str(func)
        self.seen[kind, at] += 1

    def total(self, *kinds: str) -> int:
        """Transfers of these kinds."""
        return sum(n for (kind, _), n in self.seen.items() if kind in kinds)


def move(module: nn.Module) -> Any:
    """A module whose parameters and buffers are on the stub device."""
    moved: dict[int, Any] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                data = OnDevice(parameter.detach())
                part._parameters[name] = moved.setdefault(id(parameter), nn.Parameter(data, False))
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = moved.setdefault(id(buffer), OnDevice(buffer))
        # Rotary frequencies are kept a second time, outside the buffers.
        if isinstance(original := part.__dict__.get("original_inv_freq"), Tensor):
            part.original_inv_freq = OnDevice(original)
    return module


def _host(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == NAME:
        return torch.device("cpu")
    return x.host if isinstance(x, OnDevice) else x


def _wrapped(x: Any, wrappers: Mapping[int, OnDevice]) -> Any:
    if not isinstance(x, Tensor) or isinstance(x, OnDevice):
        return x
    return wrappers[id(x)] if id(x) in wrappers else OnDevice(x)

"""Weights that stay in their file until they are packed: they are never all in memory in float32.

Transformers loads a checkpoint of 16 bits in float32, four bytes a parameter; packed, they take two or fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..modes import attributes

HALF = ("BF16", "F16")  # as Safetensors name them
ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
LOADING = Lock()  # two loads at once would restore each other's reader


class LazyWeight(Tensor):
    """A weight with the rows of other tensors, maybe of 16 bits, of which each operation reads a new copy.

    What an operation writes to it is lost.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    parts: tuple[Tensor, ...]

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor], dtype: torch.dtype) -> LazyWeight:
        size = torch.Size([sum(map(len, parts)), *parts[0].shape[1:]])
        weight: LazyWeight = Tensor._make_wrapper_subclass(cls, size, dtype=dtype, device=parts[0].device)
        weight.parts = tuple(parts)
        return weight

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # declared as another kind of method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in ALIASES:
            with torch.inference_mode(args[0].is_inference()):  # as views of a plain tensor
                return LazyWeight(args[0].parts, args[0].dtype)
        args, kwargs = tree_map_only(LazyWeight, read, (args, kwargs or {}))
        return func(*args, **kwargs)

    def data_ptr(self) -> int:
        return self.parts[0].data_ptr()


def read(weight: Tensor) -> Tensor:
    """The weight itself, or the values of a lazy one."""
    if not isinstance(weight, LazyWeight):
        return weight
    if len(weight.parts) == 1 and weight.parts[0].dtype == weight.dtype:
        return weight.parts[0]
    memory = np.empty(weight.nbytes, np.uint8)  # PyTorch's own, aligned, leaves holes in glibc's
    values = torch.from_numpy(memory).view(weight.dtype).view(weight.shape)
    for rows, part in zip(torch.split(values, [*map(len, weight.parts)]), weight.parts, strict=True):
        rows.copy_(part)
    return values


def stack(weights: Sequence[Tensor]) -> Tensor:
    """The rows of several weights as one weight, a lazy one on a CPU."""
    if weights[0].device.type != "cpu":
        return torch.cat([*weights])
    parts = [part for weight in weights for part in getattr(weight, "parts", (weight,))]
    return LazyWeight(parts, weights[0].dtype)


def read_all(model: nn.Module, keep: Collection[int] = ()) -> None:
    """Put the values of lazy tensors into a model, but for those whose identities are in `keep`."""
    plain: dict[int, Tensor] = {}  # tied ones stay tied
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for own in tables:
            for name, tensor in own.items():
                if isinstance(tensor, LazyWeight) and id(tensor) not in keep:
                    values = plain.get(id(tensor))
                    if values is None:
                        values = read(tensor.detach())
                        if isinstance(tensor, nn.Parameter):
                            values = nn.Parameter(values, tensor.requires_grad)
                    plain[id(tensor)] = own[name] = values


@contextmanager
def lazy_files() -> Iterator[None]:
    """Let Transformers read matrices of 16 bits as lazy ones of float32, in this thread."""
    from transformers import modeling_utils

    opener: Any = getattr(modeling_utils, "safe_open", None)
    thread = get_ident()

    def open_file(*args: Any, **options: Any) -> Any:
        file = opener(*args, **options)
        return _LazyFile(file) if get_ident() == thread else file

    with LOADING, attributes([(modeling_utils, "safe_open", open_file)] if opener else []):
        yield


class _LazyFile:
    """An open Safetensors file whose matrices of 16 bits are lazy ones of float32."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_slice(self, name: str) -> Any:
        whole = self._file.get_slice(name)
        if whole.get_dtype() in HALF and len(whole.get_shape()) == 2:
            return LazyWeight([self._file.get_tensor(name)], torch.float32)
        return whole

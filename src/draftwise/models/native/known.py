"""Which kernels of our own this machine has."""

from __future__ import annotations

import torch

from . import attention, linear

DTYPES = (torch.float32, torch.bfloat16)


def kernels() -> list[str]:
    """Their names, as "linear float32"; they are compiled now if they are not there."""
    parts = {"linear": linear.kernel, "attention": attention.kernel}
    return [
        f"{name} {str(dtype).removeprefix('torch.')}"
        for name, kernel in parts.items()
        for dtype in DTYPES
        if kernel(dtype) is not None
    ]

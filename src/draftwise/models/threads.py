"""OpenMP's threads, which PyTorch computes with on a CPU, belong to the thread that first computed."""

from __future__ import annotations

import ctypes
from typing import Any

SOFT = 1  # omp_pause_soft: what was set, such as the number of threads, stays


def release() -> None:
    """Let go of the OpenMP threads of the calling thread; when it computes again, it gets new ones.

    While one thread has them, those of another thread must sleep between two steps of a computation instead
    of waiting awake, since there would be more threads than cores. So a model that one thread loads and
    another runs, as in a server, is up to 2.6 times slower (`python -m studies.speed.threads`). New threads
    take 0.1 to 0.8 ms. Does nothing where OpenMP has no such function.
    """
    if (pause := _pause()) is not None:
        pause(SOFT)


def _pause() -> Any:
    """OpenMP 5.0's `omp_pause_resource_all`; None where there is none in this process, or not yet."""
    try:
        return ctypes.CDLL(None).omp_pause_resource_all
    except (AttributeError, OSError, TypeError):  # no symbol; no such handle on Windows
        return None

"""Compiles the kernels on this machine, once, and loads them."""

from __future__ import annotations

import subprocess
from ctypes import CDLL, RTLD_GLOBAL
from functools import cache
from logging import getLogger
from pathlib import Path

import torch

from .. import compiler
from ..weights.timing import machine

SOURCES = Path(__file__).parent
TUNED = (
    ("-O3", "-march=native", "-fopenmp"),
    ("-O3", "-mcpu=native", "-fopenmp"),
    ("-O3", "-fopenmp"),
    ("-O3", "-march=native"),
    ("-O3", "-mcpu=native"),
)
LOG = getLogger(__name__)


@cache
def library() -> CDLL | None:
    """The kernels, compiled by the first process that asks for them; None where that is impossible.

    Compiled graphs find its functions by their names.
    """
    try:
        return CDLL(str(found()), mode=RTLD_GLOBAL)
    except (compiler.Unmade, OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as error:
        LOG.info("no kernels of our own: %s", error)
        return None


def found() -> Path:
    """The library on disk, compiled now if it is not there.

    Raises:
        Unmade: there is no compiler that can.
        PermissionError: others may write to it.
    """
    here = machine(torch.__version__, torch.backends.cpu.get_cpu_capability(), 0)
    links = (f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu")
    return compiler.library(SOURCES, here, options=TUNED, links=links)

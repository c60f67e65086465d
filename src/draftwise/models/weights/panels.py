"""Products with weights in panels of sixteen outputs, by a kernel that this machine's own C++ compiler makes.

Libraries are tuned for products of large matrices. Over one to nine tokens a pass does little more than read
the weights, and this kernel reads them side by side. A token's result does not depend on how many others are
multiplied with it. The library is kept in the user's cache; without a compiler there is no such layout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from ctypes import CDLL, RTLD_GLOBAL, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from .. import binaries, verdicts
from .timing import machine

PANEL = 16  # outputs side by side
SOURCE = Path(__file__).with_name("panels.cpp")
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC")
TUNED = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-fopenmp",))  # the first that works
PATIENCE = 120.0  # seconds for a compiler
LOG = getLogger(__name__)

Product: TypeAlias = Callable[[int, int, int | None, int, int, int, int], None]
"""Addresses of the input, the weights, the bias or None, and the output; tokens, outputs and inputs."""


class Unmade(Exception):
    """Why there is no kernel."""


@cache
def kernel() -> Product | None:
    """The kernel, compiled by the first process that asks for it; None where that is impossible."""
    try:
        path = _found()
        product = _loaded(path)
        _check(product)
    except (Unmade, OSError, AttributeError, subprocess.SubprocessError) as error:
        LOG.info("no kernel of our own for linear layers: %s", error)
        return None
    return product


def pack(weight: Tensor) -> Tensor:
    """A weight of shape (out, in) as (panels, in, 16), filled up with zeros."""
    outputs, inputs = weight.shape
    rows = functional.pad(weight, (0, 0, 0, -outputs % PANEL))
    return rows.view(-1, PANEL, inputs).transpose(1, 2).contiguous()


def linear(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, for x of shape (..., in); `shape` has that of the weight."""
    product, x = kernel(), x.contiguous()
    assert product is not None  # what is packed was packed for it
    outputs, inputs = shape.shape
    y = x.new_empty(*x.shape[:-1], outputs)
    added = None if bias is None else bias.data_ptr()
    product(x.data_ptr(), packed.data_ptr(), added, y.data_ptr(), x.numel() // inputs, outputs, inputs)
    return y


def _found() -> Path:
    """The library on disk, compiled now if it is not there.

    Raises:
        Unmade: there is no compiler that can.
    """
    source, isa = SOURCE.read_bytes(), torch.backends.cpu.get_cpu_capability()
    names = filter(None, (os.environ.get("CXX", ""), "g++", "clang++", "c++"))
    compilers = list(dict.fromkeys(filter(None, map(shutil.which, names))))
    key = sha256(source + f"{FLAGS}{TUNED}{compilers}{machine(torch.__version__, isa, 0)}".encode())
    path = verdicts.place("kernels").with_suffix("") / f"panels-{key.hexdigest()[:32]}.so"
    if not binaries.intact(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _compile(compilers, path)
    return path


def _compile(compilers: list[str], path: Path) -> None:
    """Compile the library with the first compiler and flags that can."""
    said = ""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="scratch-") as scratch:
        part = Path(scratch) / path.name
        for command in _commands(compilers, part):
            ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
            if ran.returncode == 0:
                return binaries.publish(part, path, {"compiler": command[0]})
            said = said or f"{command[0]}: {next(iter(ran.stderr.splitlines()), '')[:160]}"
    raise Unmade(said or "there is no C++ compiler")


def _commands(compilers: list[str], out: Path) -> Iterator[list[str]]:
    libraries = Path(torch.__file__).parent / "lib"
    for compiler in compilers:
        for flags in TUNED:
            yield [
                *(compiler, *FLAGS, *flags, str(SOURCE), "-o", str(out)),
                *(f"-L{libraries}", "-ltorch_cpu"),
            ]


def _loaded(path: Path) -> Product:
    """The function in a library, whose other names are then known to compiled graphs."""
    function = CDLL(str(path), mode=RTLD_GLOBAL).draftwise_panels
    function.argtypes, function.restype = [c_void_p] * 4 + [c_int64] * 3, None
    return cast("Product", function)


def _check(product: Product) -> None:
    """Compare with PyTorch for shapes that fill no panel, and as many tokens as any tile has.

    Raises:
        Unmade: a result is wrong, or depends on the number of tokens.
    """
    rng = torch.Generator().manual_seed(0)  # leaves the user's own random generator unchanged
    for outputs, inputs in ((1, 1), (37, 19), (200, 64)):
        x, weight, bias = (torch.rand(*shape, generator=rng) - 0.5 for shape in _shapes(outputs, inputs))
        packed, wanted = pack(weight), functional.linear(x.double(), weight.double(), bias.double())
        rows = []
        for tokens in range(1, len(x) + 1):
            y = torch.empty(tokens, outputs)
            at, weights, added, out = (t.data_ptr() for t in (x, packed, bias, y))
            product(at, weights, added, out, tokens, outputs, inputs)
            if not torch.allclose(y.double(), wanted[:tokens], rtol=1e-5, atol=1e-5):
                raise Unmade("it computes something else than PyTorch")
            rows.append(y[0])
        if not all(torch.equal(row, rows[0]) for row in rows):
            raise Unmade("its results depend on the number of tokens")


def _shapes(outputs: int, inputs: int) -> tuple[tuple[int, ...], ...]:
    return (14, inputs), (outputs, inputs), (outputs,)

"""Compiles the kernels on this machine, once, and loads them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from ctypes import CDLL, RTLD_GLOBAL
from functools import cache
from hashlib import sha256
from logging import getLogger
from pathlib import Path

import torch

from .. import binaries, verdicts
from ..weights.timing import machine

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC")
TUNED = (  # the first that works
    ("-march=native", "-fopenmp"),
    ("-mcpu=native", "-fopenmp"),
    ("-fopenmp",),
    ("-march=native",),
    ("-mcpu=native",),
)
MOST = 1 << 22  # bytes kept, the latest used
PATIENCE = 120.0  # seconds for a compiler
LOG = getLogger(__name__)


class Unmade(Exception):
    """Why there is no kernel."""


@cache
def library() -> CDLL | None:
    """The kernels, compiled by the first process that asks for them; None where that is impossible.

    Compiled graphs find its functions by their names.
    """
    try:
        return CDLL(str(found()), mode=RTLD_GLOBAL)
    except (Unmade, OSError, AttributeError, subprocess.SubprocessError) as error:
        LOG.info("no kernels of our own: %s", error)
        return None


def found() -> Path:
    """The library on disk, compiled now if it is not there; that no compiler can is remembered.

    Raises:
        Unmade: there is no compiler that can.
        PermissionError: others may write to it.
    """
    names = filter(None, (os.environ.get("CXX", ""), "g++", "clang++", "c++"))
    compilers = list(dict.fromkeys(filter(None, map(shutil.which, names))))
    here = machine(torch.__version__, torch.backends.cpu.get_cpu_capability(), 0)
    key = sha256(f"{FLAGS}{TUNED}{compilers}{here}".encode())
    for source in sorted(SOURCES.glob("*.*")):
        if source.suffix in (".cpp", ".h"):
            key.update(source.read_bytes())
    name = key.hexdigest()[:32]
    path = verdicts.place("native").with_suffix("") / f"{name}.so"
    if not binaries.intact(path):
        if isinstance(said := verdicts.load("native", name), str):
            raise Unmade(said)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        binaries.prune(path.parent, "*.so", MOST)
        try:
            _compile(compilers, path)
        except Unmade as error:
            verdicts.keep("native", name, str(error))
            raise
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
    sources = map(str, sorted(SOURCES.glob("*.cpp")))
    files = [*sources, "-o", str(out), f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu"]
    for compiler in compilers:
        for flags in TUNED:
            yield [compiler, *FLAGS, *flags, *files]

"""Compiles C++ of our own on this machine, once, and keeps the library in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from . import binaries, verdicts

FLAGS = ("-std=c++17", "-shared", "-fPIC")
MOST = 1 << 22  # bytes kept, the latest used
PATIENCE = 120.0  # seconds for a compiler


class Unmade(Exception):
    """Why there is no library."""


def library(
    sources: Path, machine: str, *, options: Sequence[Sequence[str]], links: Sequence[str] = ()
) -> Path:
    """The library of the C++ files in a folder, compiled now if it is not there.

    `options` are sets of a compiler's options, of which the first is taken that works, and `machine` is all
    else that the result depends on. That no compiler can is remembered.

    Raises:
        Unmade: there is no compiler that can.
        PermissionError: others may write to it.
    """
    names = filter(None, (os.environ.get("CXX", ""), "g++", "clang++", "c++"))
    compilers = list(dict.fromkeys(filter(None, map(shutil.which, names))))
    key = sha256(f"{FLAGS}{options}{compilers}{machine}".encode())
    for source in sorted(sources.glob("*.*")):
        if source.suffix in (".cpp", ".h"):
            key.update(source.read_bytes())
    name = key.hexdigest()[:32]
    path = verdicts.place("native").with_suffix("") / f"{name}.so"
    if not binaries.intact(path):
        if isinstance(said := verdicts.load("native", name), str):
            raise Unmade(said)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        binaries.prune(path.parent, "*.so", MOST)
        files = [*map(str, sorted(sources.glob("*.cpp"))), *links]
        try:
            _compile([[one, *FLAGS, *more, *files] for one in compilers for more in options], path)
        except Unmade as error:
            verdicts.keep("native", name, str(error))
            raise
    return path


def _compile(commands: Sequence[Sequence[str]], path: Path) -> None:
    """Compile the library with the first command that can."""
    said = ""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="scratch-") as scratch:
        part = Path(scratch) / path.name
        for command in commands:
            ran = subprocess.run(
                [*command, "-o", str(part)], capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            if ran.returncode == 0:
                return binaries.publish(part, path, {"compiler": command[0]})
            said = said or f"{command[0]}: {next(iter(ran.stderr.splitlines()), '')[:160]}"
    raise Unmade(said or "there is no C++ compiler")

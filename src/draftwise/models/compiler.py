"""Compiles C++ of our own on this machine, once, and keeps libraries in the user's cache.

A file is used only if it is the one that was made, it belongs to the user, and no other user may write to it.
A description lies beside each."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from . import verdicts


def is_intact(path: Path) -> bool:
    """Whether a file is there as it was made; it then counts as just used.

    Raises:
        PermissionError: other users may write to it.
    """
    try:
        status, about = path.stat(), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        same = bool(about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} may be written by others: delete it")
    if same:
        with suppress(OSError):
            os.utime(path)  # the oldest are deleted first
    return same


def publish(part: Path, path: Path, about: dict[str, Any]) -> None:
    """Move a file that is complete to its place, with its description; others see both or neither."""
    part.chmod(0o600)
    description = part.with_suffix(".json")
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    description.write_text(json.dumps({"sha256": digest} | about), encoding="utf-8")
    os.replace(description, path.with_suffix(".json"))
    os.replace(part, path)


def prune(root: Path, pattern: str, most: int) -> None:
    """Delete the files that were not used for longest, until the others have at most so many bytes."""
    with suppress(OSError):
        for path in sorted(root.glob(pattern), key=lambda p: -p.stat().st_mtime):
            most -= path.stat().st_size
            if most < 0:
                path.unlink()
                path.with_suffix(".json").unlink(missing_ok=True)


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
    if not is_intact(path):
        if isinstance(reason := verdicts.load("native", name), str):
            raise Unmade(reason)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        prune(path.parent, "*.so", MOST)
        files = [*map(str, sorted(sources.glob("*.cpp"))), *links]
        try:
            _compile([[one, *FLAGS, *more, *files] for one in compilers for more in options], path)
        except Unmade as error:
            verdicts.keep("native", name, str(error))
            raise
    return path


def _compile(commands: Sequence[Sequence[str]], path: Path) -> None:
    reason = ""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="scratch-") as scratch:
        part = Path(scratch) / path.name
        for command in commands:
            ran = subprocess.run(
                [*command, "-o", str(part)], capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            if ran.returncode == 0:
                return publish(part, path, {"compiler": command[0]})
            reason = reason or f"{command[0]}: {next(iter(ran.stderr.splitlines()), '')[:160]}"
    raise Unmade(reason or "there is no C++ compiler")

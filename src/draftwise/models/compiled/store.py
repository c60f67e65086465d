"""Compiled graphs on disk, in the user's cache: one file and its description for each blueprint.

A damaged file is compiled again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from .. import compiler, verdicts
from .blueprint import Blueprint, Unfit

MOST = 1 << 29  # bytes kept, the latest used


def folder() -> Path:
    """Where compiled graphs are kept; Unfit if there is no such place."""
    try:
        return verdicts.place("compiled").with_suffix("")
    except RuntimeError as error:
        raise Unfit("no home folder for compiled graphs: set XDG_CACHE_HOME") from error


def find(plan: Blueprint) -> Path | None:
    """The compiled graph of a blueprint; None if there is none, or it is damaged.

    Raises:
        Unfit: other users may write to the file.
    """
    path = folder() / f"{plan.key}.pt2"
    try:
        return path if compiler.is_intact(path) else None
    except PermissionError as error:
        raise Unfit(str(error)) from error


def make(plan: Blueprint, *, behind: bool = False) -> Path:
    """Compile a blueprint in a process of its own, unless another process has just done so.

    It has the lowest priority if it runs `behind` other work; otherwise the caller waits for it.

    Raises:
        Unfit: there is no compiler, no space, or the class cannot be compiled.
    """
    root = folder()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(root / f"{plan.key}.lock"):
            return find(plan) or _made(plan, root, behind)
    except OSError as error:
        raise Unfit(f"{error.strerror or error} ({root})") from error


def _made(plan: Blueprint, root: Path, behind: bool) -> Path:
    _prune(root)
    path, part = root / f"{plan.key}.pt2", root / f"{plan.key}.{os.getpid()}.part.pt2"
    try:
        told = _compiled(plan, part, behind)
        compiler.publish(part, path, {"model": plan.model[1], "seconds": round(told["seconds"], 1)})
    finally:
        for left in (part, part.with_suffix(".json")):
            left.unlink(missing_ok=True)
    return path


def _compiled(plan: Blueprint, part: Path, behind: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "draftwise.models.compiled.child", str(part), *["behind"][:behind]]
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # they are pipes
        try:
            process.stdin.write(plan.as_json() + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        try:
            told: dict[str, Any] = json.loads(answer)
        except ValueError:
            raise Unfit("the compiling process ended without an answer") from None
        process.kill()
    if "error" in told:
        raise Unfit(str(told["error"]))
    return told


def _prune(root: Path) -> None:
    """Delete the graphs that were not used for longest, and what killed processes left."""
    day = time.time() - 86400
    for left in (*root.glob("scratch-*"), *root.glob("*.part.*")):
        with suppress(OSError):
            if left.stat().st_mtime < day:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    compiler.prune(root, "*.pt2", MOST)

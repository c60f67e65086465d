"""Results of probes of a machine or a model, saved in small JSON files in the user's cache; and how long a
start may take for timing what is faster here.

A damaged or inaccessible file counts as empty, and a verdict that cannot be written is lost: the only cost is
the time to find it again.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from ..writing import write_json
from .stages import announce
from .threads import THREADS

Result = TypeVar("Result")

MOST = 512  # verdicts kept per file, the latest


def folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "draftwise"


def place(kind: str) -> Path:
    return folder() / f"{kind}.json"


def load(kind: str, key: str) -> Any:
    return _read(kind).get(key)


def keep(kind: str, key: str, verdict: Any) -> None:
    """Save a verdict if the file can be written; other processes read either the old file or the new one."""
    verdicts = _read(kind)
    verdicts.pop(key, None)
    with suppress(OSError, RuntimeError):  # a full disk, for example, or no home folder
        path = place(kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dict([*verdicts.items(), (key, verdict)][-MOST:]))


def _read(kind: str) -> dict[str, Any]:
    try:
        content = json.loads(place(kind).read_text(encoding="utf-8"))
    except (OSError, RuntimeError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def machine(threads: int = 0) -> str:
    """The processor as PyTorch sees it, as a short text."""
    import torch

    return processor(f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability(), threads)


def processor(library: str, isa: str, threads: int) -> str:
    """The processor with its features, and a library that computes with it, as a short text."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = {line for line in lines if line.startswith(("model name", "flags", "Features", "cache size"))}
    facts |= {platform.machine(), platform.processor(), isa, os.environ.get("ONEDNN_MAX_CPU_ISA", "")}
    digest = sha256("\n".join(sorted(facts)).encode()).hexdigest()[:16]
    return f"{digest} {library} threads {threads}"


SECONDS = 3.0  # of trials in one start
MODES = ("auto", "off", "all")
ENOUGH = 3  # unclear answers of a quiet machine, after which the last one stays
VARIABLE = "DRAFTWISE_TRIALS"


@dataclass(slots=True)
class Trials:
    """The time left for trials: `SECONDS` of a start ("auto"), none ("off"), or any ("all"), which also
    repeats those with an answer."""

    mode: str = "auto"
    left: float = SECONDS

    def wants(self, saved: Any) -> bool:
        """Whether to time something with this saved verdict.

        An unclear one is corrected when the machine is quiet.
        """
        if self.mode == "all":
            return True
        unclear = isinstance(saved, dict) and saved.get("unclear", 0)
        useful = not isinstance(saved, dict) or (0 < unclear < ENOUGH and not THREADS.busy)
        return self.mode == "auto" and useful and self.left > 0

    def budget(self, most: float) -> float:
        return most if self.mode == "all" else min(most, max(self.left, 0.0))

    @property
    def limit(self) -> float:
        return inf if self.mode == "all" else SECONDS / 2

    def spread(self, what: str, steps: Generator[None, None, Result]) -> Generator[None, None, Result]:
        """Take what each of the steps takes from the time left; returns what they return."""
        announce(f"timing {what}")
        while True:
            began = time.perf_counter()
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self.left -= time.perf_counter() - began
            yield


def finish(steps: Generator[None, None, Result]) -> Result:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


_current: ContextVar[Trials | None] = ContextVar("trials", default=None)


def trials() -> Trials:
    """Those of the start under way; outside one, with time of their own."""
    return _current.get() or Trials(_mode())


@contextmanager
def start(mode: str = "") -> Iterator[None]:
    """Let all trials of the block share one allowance; a block within another shares its.

    Raises:
        UserError: `mode`, or the environment's DRAFTWISE_TRIALS, is none of `MODES`.
    """
    before = _current.get()
    token = _current.set(before or Trials(_mode(mode)))
    try:
        yield
    finally:
        _current.reset(token)


def save_answer(kind: str, key: str, verdict: Mapping[str, Any], *, lasting: bool) -> None:
    """Save a verdict; unless it is `lasting`, as an unclear one, which a later start may correct."""
    saved = load(kind, key)
    before = saved.get("unclear", 0) if isinstance(saved, dict) else 0
    unclear = {} if lasting else {"unclear": min(before + (not THREADS.busy), ENOUGH) or 1}
    keep(kind, key, {**verdict, **unclear})


def _mode(requested: str = "") -> str:
    mode = requested or os.environ.get(VARIABLE, "auto")
    if mode not in MODES:
        raise UserError(f"trials={mode!r}: choose from {', '.join(MODES)}")
    return mode

"""The state file of an engine, and its counts by drafter in a small file for other processes."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from time import monotonic, time
from typing import Any

from ...policies.catalogue import default
from ...specs import DrafterSpec
from ...state.file import StateFile, usable
from ...writing import write_text
from ..follow import Follower
from .names import is_own
from .options import Options

SAVE_SECONDS = 30.0  # between two saves while texts end
REPORT_SECONDS = 1.0  # between two reports, and two saves when no request is left, as before a shutdown
WEEK = 7 * 24 * 3600.0


class Reporter:
    """Saves what the policy learns, and reports counts by drafter.

    The state is saved after texts have ended: periodically, when no request is left, and at a regular
    shutdown of the engine, which vLLM's server does not always wait for. The totals are written to a small
    file that vLLM's front-end process reads (`totals`).
    """

    def __init__(self, follower: Follower, state: StateFile | None, path: Path) -> None:
        self.follower, self.state, self.path = follower, state, path
        self._saved = self._reported = monotonic()
        self._open = 0
        if state is not None:
            state.load()
        sweep(path.parent)

    @classmethod
    def of(cls, owner: Any, follower: Follower, options: Options, config: Any) -> Reporter:
        """Return the reporter of an engine; it saves when its owner is deleted or the process ends."""
        parallel = config.parallel_config
        rank = int(parallel.data_parallel_rank) if parallel.data_parallel_size > 1 else 0
        state = None
        if options.state:
            path = Path(options.state)
            path = usable(path.with_name(f"{path.stem}.{rank}{path.suffix}") if rank else path)
            name = options.policy or default(options.drafters)
            drafters = {d: DrafterSpec("vllm", text=d) if is_own(d) else d for d in options.drafters}
            target = config.model_config.model
            state = StateFile.of(path, follower.policy, name=name, target=target, drafters=drafters)
        reporter = cls(follower, state, path_of(config.instance_id, rank))
        # multiprocessing's own finalizers also run in forked children, where atexit does not.
        Finalize(owner, reporter.end, exitpriority=10)
        return reporter

    def tick(self) -> None:
        """Save and report what is due; call it after every step."""
        now, open = monotonic(), len(self.follower.open)
        if now - self._reported >= REPORT_SECONDS or not open:
            self._reported = now
            self.report()
        is_due = now - self._saved >= (SAVE_SECONDS if open else REPORT_SECONDS)
        if open < self._open and is_due and self.state is not None:
            self._saved = now
            self.state.keep()
        self._open = open

    def report(self) -> None:
        """Write the totals, if that is possible: they never cost a text."""
        text = json.dumps(self.follower.totals())
        with suppress(OSError):  # a full disk, or a folder that was cleared away
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            write_text(self.path, text)

    def end(self) -> None:
        """Save, and remove the totals."""
        if self.state is not None:
            self.state.keep()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def path_of(instance: str, replica: int) -> Path:
    """Return the path of an engine's totals, the same for all processes of one vLLM on one machine."""
    folder = Path(tempfile.gettempdir()) / f"draftwise-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"vllm-{instance}-{replica}.json"


def totals(llm: Any, *, replica: int = 0) -> dict[str, Any]:
    """Return the counts by drafter of an `LLM` or `AsyncLLM` that uses Draftwise, at most a second old.

    Empty before its first step.
    """
    config = getattr(llm, "llm_engine", llm).vllm_config
    return read(path_of(config.instance_id, replica))


def read(path: Path) -> dict[str, Any]:
    """Return the totals in a file; empty if there is none."""
    try:
        counts: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return counts


def sweep(folder: Path) -> None:
    """Remove the totals of killed engines, a week after their last update."""
    for path in folder.glob("vllm-*.json"):
        with suppress(FileNotFoundError):
            if time() - path.stat().st_mtime > WEEK:
                path.unlink()

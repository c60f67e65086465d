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
from ...state.file import Saver, StateFile, usable
from ...writing import write_text
from ..follow import Follower
from .options import Options, is_own

SAVE_SECONDS = 30.0  # between two saves while requests are open
REPORT_SECONDS = 1.0  # between two reports, and two saves when no request is left, as before a shutdown
WEEK = 7 * 24 * 3600.0


class Reporter:
    """Saves what the policy learns, and reports counts by drafter.

    The state is saved periodically, when no request is left, and when the `owner` is deleted or the process
    ends, for which vLLM's server does not always wait; what replicas with the same file have saved is added
    to it. The totals are written to a small file that vLLM's front-end process reads (`totals`).
    """

    def __init__(self, owner: Any, follower: Follower, options: Options, config: Any) -> None:
        # Ranks of a dense model count as engines of their own: their data_parallel_rank is 0.
        rank = int(config.parallel_config.data_parallel_index)
        self.follower, self.path = follower, path_of(config.instance_id, rank)
        self.saver: Saver | None = None
        self._saved = self._reported = monotonic()
        self._idle = True
        if options.state:
            name = options.policy or default(options.drafters)
            drafters = {d: DrafterSpec("vllm", text=d) if is_own(d) else d for d in options.drafters}
            of: dict[str, Any] = {"name": name, "target": config.model_config.model, "drafters": drafters}
            state = StateFile.of(usable(options.state), follower.policy, **of)
            state.load()
            self.saver = Saver(state)
        sweep(self.path.parent)
        # multiprocessing's own finalizers also run in forked children, where atexit does not.
        Finalize(owner, self.end, exitpriority=10)

    def tick(self) -> None:
        """Save and report what is due; call it after every step."""
        now, idle = monotonic(), not self.follower.open
        if now - self._reported >= REPORT_SECONDS or idle:
            self._reported = now
            self.report()
        if self.saver is None:
            return
        self.saver.finish()
        ends = idle and not self._idle
        is_due = now - self._saved >= (REPORT_SECONDS if ends else SAVE_SECONDS)
        if is_due and self.saver.start():
            self._saved, ends = now, False
        self._idle = idle and not ends  # the end of the last text is saved at a later step if not now

    def report(self) -> None:
        """Write the totals, if that is possible: they never cost a text."""
        text = json.dumps(self.follower.totals())
        with suppress(OSError):  # a full disk, or a folder that was cleared away
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            write_text(self.path, text)

    def end(self) -> None:
        """Save, and remove the totals."""
        if self.saver is not None:
            self.saver.end()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def path_of(instance: str, replica: int) -> Path:
    """Return the path of an engine's totals, the same for all processes of one vLLM on one machine."""
    return Path(tempfile.gettempdir()) / f"draftwise-{os.getuid()}" / f"vllm-{instance}-{replica}.json"


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

"""What survives an engine: the state file, and totals for other processes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from time import monotonic
from typing import Any

from ...policies.catalogue import default
from ...state.file import StateFile, usable
from ..follow import Follower
from .options import Options
from .totals import path_of, sweep

EVERY = 30.0  # seconds between two saves while texts end; 1 when no request is left, as before a shutdown
OFTEN = 1.0  # seconds between two reports of the totals


class Keeper:
    """Saves what the policy learns, and reports counts by drafter.

    The state is saved after texts have ended: periodically, when no request is left, and at a regular
    shutdown of the engine, which vLLM's server does not always wait for. The totals are written to a small
    file that vLLM's front-end process reads (`totals`).
    """

    def __init__(self, follower: Follower, state: StateFile | None, report: Path) -> None:
        self.follower, self.state, self.report = follower, state, report
        self._saved = self._reported = monotonic()
        self._open = 0
        if state is not None:
            state.load()
        sweep(report.parent)

    @classmethod
    def of(cls, owner: Any, follower: Follower, options: Options, config: Any) -> Keeper:
        """The keeper of an engine; saves when its owner is deleted or the process ends."""
        rank = _replica(config)
        state = None
        if options.state:
            asked = Path(options.state)
            path = usable(asked.with_name(f"{asked.stem}.{rank}{asked.suffix}") if rank else asked)
            name = options.policy or default(options.drafters)
            drafters = {d: d for d in options.drafters}
            target = config.model_config.model
            state = StateFile.of(path, follower.policy, name=name, target=target, drafters=drafters)
        keeper = cls(follower, state, path_of(config.instance_id, rank))
        # multiprocessing's own finalizers also run in forked children, where atexit does not.
        Finalize(owner, keeper.end, exitpriority=10)
        return keeper

    def tick(self) -> None:
        """Call it after every step."""
        now, open = monotonic(), len(self.follower.open)
        if now - self._reported >= OFTEN or not open:
            self._reported = now
            self.tell()
        due = now - self._saved >= (EVERY if open else OFTEN)
        if open < self._open and due and self.state is not None:
            self._saved = now
            self.state.keep()
        self._open = open

    def tell(self) -> None:
        """Write the totals, if that is possible: they never cost a text."""
        told = json.dumps(self.follower.totals())
        swap = self.report.with_suffix(".writing")
        with suppress(OSError):  # a full disk, or a folder that was cleared away
            self.report.parent.mkdir(mode=0o700, exist_ok=True)
            swap.write_text(told)
            os.replace(swap, self.report)

    def end(self) -> None:
        """Save, and remove the totals."""
        if self.state is not None:
            self.state.keep()
        with suppress(OSError):
            self.report.unlink(missing_ok=True)


def _replica(config: Any) -> int:
    parallel = config.parallel_config
    return int(parallel.data_parallel_rank) if parallel.data_parallel_size > 1 else 0

"""A target on a device in name only: a pass is a thread's, and whoever reads its result waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from draftwise.core.drafts import Draft
from draftwise.core.request import Request
from draftwise.core.roles import Scores
from draftwise.testing.target import SimTarget

THREAD = ThreadPoolExecutor(1)


class ThreadTarget(SimTarget):
    """`SimTarget` whose passes run beside the host.

    `log` has what happened, in order. `gap` is true from a launch to the read of its result: no scores may be
    asked for then, since they would wait for the device. `faults` are to be raised, by the number of the
    launch: there, or where it is read.
    """

    is_asynchronous = True

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.log: list[str] = []
        self.gap = False
        self.launches = 0
        self.faults: dict[int, str] = {}

    def launch(self, batch: Sequence[tuple[Request, Draft]]) -> Callable[[], list[Scores]]:
        """Start a pass in the thread."""
        fault = self.faults.get(self.launches, "")
        self.launches += 1
        self.log.append("launch")
        if fault == "launch":
            raise RuntimeError("no memory")
        future, self.gap = THREAD.submit(self.verify, batch), True

        def read() -> list[Scores]:
            scores = future.result()
            self.gap = False
            self.log.append("read")
            if fault == "read":
                raise RuntimeError("an illegal access")
            return [Watched(self, one) for one in scores]

        return read


class Watched:
    """Scores that nobody may ask while a pass runs."""

    def __init__(self, target: ThreadTarget, scores: Scores) -> None:
        self._target, self._scores = target, scores

    def __getattr__(self, name: str) -> Any:
        assert not self._target.gap, f"{name} was asked for while a pass runs"
        return getattr(self._scores, name)

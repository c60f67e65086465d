"""A policy without any intent, for tests of drafters and targets."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from draftwise.core.arms import Arm, Context, Decision


@dataclass(slots=True)
class Anyone:
    """Plays an arm at random, and learns nothing: policy and recorder in one."""

    arms: tuple[Arm, ...]
    reads_hints: bool = False
    reads: frozenset[str] = frozenset()

    def choose(self, context: Context, rng: Random) -> Decision:
        return Decision(rng.randrange(len(self.arms)))

    def add(self, *seen: object) -> tuple[()]:
        return ()

    def learn(self, feedback: object) -> None: ...

    def close(self, request: Any) -> Any:
        return ()

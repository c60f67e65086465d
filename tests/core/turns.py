"""For tests of drafters and targets: a random policy, a stateless drafter, and the texts of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling


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


class Stateless:
    """A drafter that drafts each job by itself, by `one`, and learns nothing."""

    def hint(self, request: Request) -> float:
        return 1.0

    def observe(self, request: Request, new: Sequence[int]) -> None: ...

    def close(self, request: Request) -> None: ...

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [self.one(job) for job in jobs]

    def one(self, job: Job) -> Draft:
        raise NotImplementedError


def written(loop: Loop, prompts: Sequence[Sequence[int]], n: int, batch: int) -> list[list[int]]:
    """What `loop` writes after each prompt, `n` tokens at most; no round may have a fault."""
    texts: dict[int, list[int]] = {}
    for round in loop.run(prompts, Sampling(max_new_tokens=n), batch=batch):
        texts.setdefault(round.request, []).extend(round.tokens)
        assert not round.fault, round.fault
    assert not any(loop.faults.values()), loop.faults
    return [texts[i] for i in sorted(texts)]

"""For tests of drafters and targets: a random policy, a stateless drafter, loops, and what they write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.policies.catalogue import method


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


def loop_with(target: Any, drafters: dict[str, Any], policy: str, **options: Any) -> Loop:
    """A loop whose policy, by its name, chooses among these drafters."""
    chosen = method(policy, list(drafters))
    return Loop(target, drafters, chosen.policy, chosen.recorder, **options)


def watch_passes(runner: Any) -> list[int]:
    """Return a list that gets the number of tokens that each pass of a runner reads from now on."""
    read: list[int] = []
    forward = runner.forward

    def watched(given: Any) -> Any:
        read.append(sum(map(len, given.tokens)))
        return forward(given)

    runner.forward = watched
    return read


def decode_all(loop: Loop) -> list[Round]:
    """Step until no request is open; returns all rounds."""
    rounds: list[Round] = []
    while loop.open:
        rounds += loop.step()
    return rounds


def group_tokens(rounds: Iterable[Round]) -> list[list[int]]:
    """The tokens of each request, in the order of the requests."""
    texts: dict[int, list[int]] = {}
    for round in rounds:
        texts.setdefault(round.request, []).extend(round.tokens)
    return [texts[key] for key in sorted(texts)]


def written(loop: Loop, prompts: Sequence[Sequence[int]], n: int, batch: int) -> list[list[int]]:
    """What `loop` writes after each prompt, `n` tokens at most; no round may have a fault."""
    rounds = list(loop.run(prompts, Sampling(max_new_tokens=n), batch=batch))
    assert not any(round.fault for round in rounds) and not any(loop.faults.values()), loop.faults
    return group_tokens(rounds)

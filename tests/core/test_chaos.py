"""Everything at once: requests join, leave, stall, park, continue and fail, and drafters and policies
fail."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from draftwise.build import complete
from draftwise.core.arms import Context, Decision
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from tests.effort import some
from tests.tiny import VOCAB, model, own_text

POLICIES = (
    "random?arms=drafters*lengths&lengths=0,1,3,7",
    "ucb1",
    "hedgespec",
    "draft-all",
    "tapout-token-ts",
    "metasd-ucb",
)


class Moody(LMDrafter):
    """Now and then it raises, drafts nonsense, or far too much."""

    def __init__(self, made: Any, rng: random.Random) -> None:
        super().__init__(made, VOCAB)
        self.moods = rng

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        mood = self.moods.random()
        if mood < 0.02:
            raise RuntimeError("not now")
        if mood < 0.04:
            return [Draft.chain([VOCAB + 3]) for _ in jobs]
        return super().draft(jobs)


@cache
def written(kind: str, prompt: tuple[int, ...], n: int) -> list[int]:
    return own_text(model(kind, scale=5.0), list(prompt), n)


def chaos(kind: str, seed: int, *, steps: int) -> tuple[int, int, int]:
    """Texts compared with the target's own, requests that failed, and tokens that were accepted."""
    rng = random.Random(seed)
    team: dict[str, Any] = {
        "good": LMDrafter(model(kind, scale=5.0), VOCAB),
        "moody": Moody(model(kind, scale=5.0), rng),
        "bad": LMDrafter(model("llama", seed=9), VOCAB),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
    }
    chosen = method(rng.choice(POLICIES), list(team))
    choose = chosen.policy.choose

    class Odd:
        """The same policy, which raises now and then."""

        def __getattr__(self, name: str) -> Any:
            return getattr(chosen.policy, name)

        def choose(self, context: Context, lots: random.Random) -> Decision:
            if rng.random() < 0.02:
                raise ZeroDivisionError("division by zero")
            return choose(context, lots)

    policy: Any = Odd()
    target = HFTarget(model(kind, scale=5.0))
    loop = Loop(target, complete(team, chosen), policy, chosen.recorder, seed=seed, max_faults=999)
    texts: dict[int, list[int]] = {}
    alive: dict[int, Request] = {}
    checked = failed = accepted = 0

    def fails(ids: Any, scores: Any) -> Any:
        if rng.random() < 0.05:
            raise ArithmeticError("no")
        return scores

    for _ in range(steps):
        if len(alive) < 5 and rng.random() < 0.6:
            start = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 3, 8, 40]))]
            faulty = (fails,) if rng.random() < 0.3 else ()
            settings = Sampling(max_new_tokens=rng.choice([1, 5, 20]), processors=faulty)
            request = loop.add(start, settings, keep=rng.random() < 0.3)
            alive[request.id], texts[request.id] = request, []
        some = [r for r in alive.values() if rng.random() < 0.7]  # the others stand still
        for round in loop.step(some):
            texts[round.request] += round.tokens
            accepted += round.accepted
            failed += round.error is not None
        for key, request in list(alive.items()):
            own = texts[key]
            if request.done:
                prompt = tuple(request.tokens[: request.prompt_length])
                whole = written(kind, prompt, request.sampling.max_new_tokens)
                assert own == (whole[: len(own)] if request.finish_reason == "error" else whole)
                checked += 1
                if key in loop.parked and rng.random() < 0.5 and len(request.tokens) < 90:
                    texts[key] = []
                    loop.extend(request, [rng.randrange(VOCAB)], Sampling(max_new_tokens=9))
                else:
                    loop.close(alive.pop(key))
            elif rng.random() < 0.03:
                loop.close(alive.pop(key))
    for request in alive.values():
        loop.close(request)
    assert not loop.open and not loop.parked and not target.runner.request_ids
    return checked, failed, accepted


@pytest.mark.parametrize("seed", some(range(3), 3))
@pytest.mark.parametrize("kind", ["llama", "qwen3-window"])
def test_every_text_that_is_written_is_the_targets_own(kind: str, seed: int) -> None:
    checked, failed, accepted = chaos(kind, seed, steps=60)
    assert checked > 10 and accepted > 20, (checked, failed, accepted)

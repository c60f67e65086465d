"""Under a grammar the drafts keep to what it allows: same greedy text, same law, fewer rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.core.loop import Loop
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.cascade import CascadeDrafter
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.targets.hf import HFTarget
from tests.core.turns import Stateless, loop_with, watch_passes
from tests.distributions import exact, p_value, sample_each
from tests.drafters.neural import test_eagle as eagles
from tests.effort import drawn
from tests.exactness.test_exact_hf import distribution_of
from tests.tiny import VOCAB, model, own_text, random_texts

FREE = ((3, 4, 5, 6), (7,), (8,), (9, 10), (3, 11, 12))  # the tokens allowed at each place, in turn


class Plain:
    """Allows the tokens of a cycle, and does not tell in advance."""

    def __init__(self, cycle: Sequence[Sequence[int]] = FREE) -> None:
        self.cycle, self.start = cycle, -1

    def free(self, place: int) -> Sequence[int]:
        return self.cycle[place % len(self.cycle)]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self.start < 0:
            self.start = input_ids.shape[1]
        free = list(self.free(input_ids.shape[1] - self.start))
        return torch.full_like(scores, -inf).index_copy(1, torch.tensor(free), scores[:, free])


class Telling(Plain):
    """The same, and tells."""

    def mask(self, text: Sequence[int], start: int, ahead: Sequence[int], scores: Any) -> Any:
        free = list(self.free(len(text) - start + len(ahead)))
        return torch.full_like(scores, -inf).index_copy(0, torch.tensor(free), scores[free])

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        free = self.free(len(text) - start + len(ahead))
        return free[0] if len(free) == 1 else -1

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        return token in self.free(len(text) - start + len(ahead))


class Wrong(Telling):
    """Tells something else than it does."""

    def only(self, text: Sequence[int], start: int, ahead: Sequence[int]) -> int:
        return (len(text) + len(ahead)) % VOCAB

    def allows(self, text: Sequence[int], start: int, ahead: Sequence[int], token: int) -> bool:
        return token % 2 == 0


class Raising(Plain):
    """Tells nothing but an error."""

    def mask(self, *given: Any) -> Any:
        raise ValueError("no mask")

    only = allows = mask


def team(target: HFTarget, made: Any) -> dict[str, Any]:
    return {
        "self": LMDrafter(made, VOCAB),
        "bad": LMDrafter(model("llama", seed=1), VOCAB),
        "ngram": NgramDrafter(),
        "cascade": CascadeDrafter("ngram>self"),
        "eagle": EagleDrafter(eagles.bad("eagle"), target),
        "tree": EagleDrafter(eagles.bad("eagle"), target, width=3),
    }


def looped(made: Any, policy: str, names: Sequence[str] = ()) -> Loop:
    target = HFTarget(made, chunk=8)
    all_of = team(target, made)
    mine = {name: all_of[name] for name in names or all_of}
    return loop_with(target, mine, policy, seed=5)


def run(loop: Loop, kind: Any, prompts: Sequence[list[int]], n: int) -> tuple[list[list[int]], list[Round]]:
    requests = [loop.add(prompt, Sampling(max_new_tokens=n, processors=(kind(),))) for prompt in prompts]
    rounds: list[Round] = []
    while loop.open:
        rounds += loop.step()
    return [r.tokens[len(p) :] for r, p in zip(requests, prompts, strict=True)], rounds


@pytest.mark.parametrize("policy", ["random?arms=drafters*lengths&lengths=0,1,2,5", "auto"])
@pytest.mark.parametrize("kind", [Telling, Wrong, Raising])
def test_greedy_text_is_the_one_without_drafts(kind: Any, policy: str) -> None:
    made, prompts = model("llama"), random_texts((5, 20, 1))
    truth, _ = run(looped(made, "none", ["ngram"]), Plain, prompts, 20)
    loop = looped(made, policy)
    texts, rounds = run(loop, kind, prompts, 20)
    assert texts == truth and all(round.error is None for round in rounds)
    faults = {round.fault for round in rounds} - {""}
    assert not any(loop.faults.values()), (loop.faults, faults)
    assert ("Raising: ValueError: no mask" in faults) == (kind is Raising)


@pytest.mark.parametrize("name", ["self", "bad", "eagle", "ngram"])
def test_drafts_are_allowed_and_what_must_follow_is_accepted(name: str) -> None:
    made, prompts = model("llama"), random_texts((20, 8))
    rates = {}
    for kind in (Plain, Telling):
        _, rounds = run(looped(made, "static-4", [name]), kind, prompts, 30)
        rates[kind] = sum(r.accepted for r in rounds) / len(rounds)
    assert rates[Telling] > rates[Plain] + 0.5


class Silent(Stateless):
    """Drafts nothing, ever."""

    def one(self, job: Any) -> Any:
        raise AssertionError("asked although the draft was complete")


def test_a_token_that_must_follow_needs_no_drafter() -> None:
    made, (prompt,) = model("llama"), random_texts((6,))
    loop = loop_with(HFTarget(made), {"silent": Silent()}, "static-2")
    cycle = [[3], [4], [5, 6]]

    def kind() -> Telling:
        return Telling(cycle)

    texts, rounds = run(loop, kind, [prompt], 12)
    assert not any(loop.faults.values()) and [r.accepted for r in rounds] == [2, 2, 2, 2]
    assert texts == run(looped(made, "none", ["ngram"]), lambda: Plain(cycle), [prompt], 12)[0]


def test_a_drafter_reads_what_must_follow_together_with_the_rest() -> None:
    made, (prompt,) = model("llama"), random_texts((6,))
    loop = looped(made, "static-5", ["bad"])
    passes = watch_passes(loop.pool.drafters["bad"].runner)  # type: ignore[attr-defined]
    run(loop, Telling, [prompt], 6)
    assert passes[0] == 6 and passes[1] == 3, "one free token, and two that must follow it, in one pass"


@pytest.mark.parametrize("kind", [Telling, Wrong])
@pytest.mark.parametrize("names", [["bad"], ["self", "bad", "ngram"]])
def test_the_law_is_the_targets(kind: Any, names: list[str]) -> None:
    made, (prompt,) = model("llama", scale=2.0), random_texts((7,))
    loop = looped(made, "random?arms=drafters*lengths&lengths=0,1,3", names)
    cycle, raw = ((3, 4, 5), (7,), (9, 10, 11)), distribution_of(made)

    def allowed(history: Sequence[int]) -> Any:
        logits, free = np.full(VOCAB, -inf), list(cycle[len(history) - len(prompt)])
        logits[free] = raw(history)[free]
        return logits

    sampling = Sampling(max_new_tokens=3, temperature=1.0, top_k=2)
    each = [replace(sampling, processors=(kind(cycle),)) for _ in range(drawn(900))]
    found = sample_each(loop, prompt, each, batch=6)
    assert p_value(found, exact(allowed, prompt, VOCAB, 3, sampling)) > 1e-4


def test_text_without_processors_is_as_before() -> None:
    made, (prompt,) = model("llama"), random_texts((9,))
    loop = looped(made, "static-3", ["bad"])
    request = loop.add(prompt, Sampling(max_new_tokens=9))
    while loop.open:
        loop.step()
    assert request.tokens[9:] == own_text(made, prompt, 9)

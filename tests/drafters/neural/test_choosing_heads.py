"""Choosing among several heads of one target: MetaSD's white box, and HedgeSpec's grades of trees."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.medusa import MedusaDrafter
from draftwise.policies.recorders.full_information import Grading
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone, loop_with
from tests.drafters.neural.heads import check_sampled, random_eagle, target, trained_medusa
from tests.drafters.neural.test_eagle import good, soft, texts_of
from tests.effort import some, thorough
from tests.exactness.test_exact_hf import distribution_of
from tests.targets.test_hf import prompts
from tests.tiny import own_text

POLICIES = [
    "metasd-ucb?length=3",
    "metasd-exp3?length=3",
    "hedgespec?length=3",
    "hedgespec?length=3&windows=rounds",
    "random?arms=drafters*lengths*stops&lengths=0,2,4",
    "tapout-seq-ucb1?drafter=good&length=4",
    "auto",
]


def team(made: Any, reads: HFTarget, heads: dict[str, Any]) -> dict[str, Any]:
    return {
        "good": EagleDrafter(heads["good"], reads),
        "tree": EagleDrafter(heads["good"], reads, width=3),
        "bad": EagleDrafter(heads["bad"], reads),
        "bad-tree": EagleDrafter(heads["bad"], reads, width=3),
        "medusa": MedusaDrafter(heads["medusa"], reads, width=2),
        "ngram": NgramDrafter(),
    }


@pytest.mark.parametrize("policy", some(POLICIES, 2))
def test_policies_choose_among_heads_and_the_text_stays(policy: str) -> None:
    made = target()
    heads = {"good": good("eagle"), "bad": random_eagle(made, eagle3=True), "medusa": trained_medusa(made)}
    own = [own_text(made, p, 30) for p in prompts()]
    reads = HFTarget(made, chunk=8)
    drafters = team(made, reads, heads)
    texts, rounds = texts_of(loop_with(reads, drafters, policy), 30, 3)
    assert texts == own and any(r.accepted for r in rounds)


@thorough
def test_the_distribution_is_the_targets() -> None:
    made = target(scale=5.0)
    heads = {"good": soft("eagle", True), "bad": soft("eagle", False), "medusa": trained_medusa(made)}
    reads = HFTarget(made, chunk=8)
    loop = loop_with(reads, team(made, reads, heads), "hedgespec?length=3")
    check_sampled(loop, distribution_of(made), n=400)


@dataclass(slots=True)
class Seer(Anyone):
    """Notes the feedback that it gets."""

    seen: list[Feedback] = field(default_factory=list)

    def choose(self, context: Context, rng: Random) -> Decision:
        return Decision(0)

    def learn(self, feedback: Any) -> None:
        self.seen.append(feedback)


def rounds_alone(drafter: EagleDrafter, request: Request, arm: Arm) -> int:
    """Rounds that an arm needs for a text, drafting at the beginning of each."""
    from dataclasses import replace

    at, n = request.prompt_length, 0
    while at < len(request.tokens):
        view = replace(request, tokens=request.tokens[:at])
        (draft,) = drafter.draft([Job(view, arm.length, width=arm.width)])
        node, n = -1, n + 1
        while at < len(request.tokens):
            token, at = request.tokens[at], at + 1
            below = {draft.tokens[i]: i for i, p in enumerate(draft.parents) if p == node}
            if token not in below:
                break
            node = below[token]
    return n


def test_grades_of_trees_count_the_rounds_that_they_would_need() -> None:
    """Full information for arms that never play: chains, a wider arm, and a drafter of trees."""
    made = target()
    reads = HFTarget(made, chunk=8)
    drafters: dict[str, Any] = {
        "none": NgramDrafter(),
        "chain": EagleDrafter(good("eagle"), reads, sample=False),
        "tree": EagleDrafter(good("eagle"), reads, width=3),
        "bad": EagleDrafter(random_eagle(made), reads, width=2),
    }
    arms = (Arm("none", 0), Arm("tree", 3), Arm("chain", 2, width=4), Arm("bad", 3))
    policy = Seer(arms)
    loop = Loop(reads, drafters, policy, Grading(arms))
    request = loop.add([3, 4, 5], Sampling(max_new_tokens=40), keep=True)
    while loop.open:
        loop.step()
    losses = [feedback.losses for feedback in policy.seen if feedback.losses]
    assert len(losses) == 40
    for i, arm in enumerate(arms[1:], start=1):
        needed = rounds_alone(drafters[arm.drafter], request, arm)
        assert sum(loss[i] or 0.0 for loss in losses) == needed
        assert needed < 40

"""What policies tell displays: one value an arm, and nothing about them changes by it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Context
from draftwise.core.outcomes import Feedback, Outcome, RoundCost
from draftwise.core.roles import Valuer
from draftwise.policies.catalogue import method
from draftwise.registry.entries import describe
from draftwise.state.numbers import dump

POLICIES = [one.name for one in describe("policies") if one.name not in ("disco", "specdecpp", "router")]

TELLING = {"auto", "ucb1", "metasd-ucb", "hedgespec", "linucb", "exp3spec"}


def played(name: str, *, looks: bool) -> tuple[Any, list[int], Any]:
    """A policy after some rounds of three requests, what it chose, and what it knows."""
    policy: Any = method(name, ["a", "b"]).policy
    rng, outcomes, chosen = Random(1), Random(2), []
    for at in range(60):
        request = at % 3
        decision = policy.choose(Context(request, 1, at, hints={"a": 3.0, "b": 1.0}), rng)
        chosen.append(decision.arm)
        arm = policy.arms[decision.arm]
        accepted = outcomes.randint(0, arm.length)
        reward, spent = accepted / max(1, arm.length), RoundCost(0.001, 0.01, 1 + arm.length)
        done = Outcome(decision.arm, accepted, arm.length, 0.011, reward=reward, cost=spent)
        losses = tuple(outcomes.random() for _ in policy.arms)
        policy.learn(Feedback(request, decision, (done,), losses))
        if looks and isinstance(policy, Valuer):
            policy.values(1 + at % 5)
    return policy, chosen, dump(policy)


@pytest.mark.parametrize("name", POLICIES)
def test_a_look_changes_nothing(name: str) -> None:
    policy, chosen, known = played(name, looks=True)
    _, others, same = played(name, looks=False)
    assert (chosen, known) == (others, same)
    arms = len(policy.arms)
    assert isinstance(policy, Valuer) or name not in TELLING
    if isinstance(policy, Valuer):
        told = policy.values()
        assert len(told.values) == arms and len(told.seconds) in (0, arms)
        assert any(value is not None for value in told.values)


def test_one_learner_for_each_request_is_shown_by_the_mean() -> None:
    policy, _, _ = played("metasd-ucb", looks=False)
    told = [learner.estimates() for learner in policy.learners.values()]
    assert len(told) == 3
    assert policy.values().values == tuple(
        pytest.approx(sum(column) / 3) for column in zip(*told, strict=True)
    )
    for request in range(3):
        policy.close(request)
    assert policy.values().values == (None,) * len(policy.arms)

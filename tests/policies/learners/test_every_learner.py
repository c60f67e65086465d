"""What holds for every learner, whatever it learns from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from random import Random
from typing import Any

import pytest

from draftwise.policies.learners.exp3 import EXP3, EXP3Spec
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.learners.halving import ExploreThenCommit, SequentialHalving
from draftwise.policies.learners.hedge import Hedge, NormalHedge
from draftwise.policies.learners.learner import Chooser, FullInformation, Learner, draw
from draftwise.policies.learners.linucb import LinUCB
from draftwise.policies.learners.thompson import GaussianThompson
from draftwise.policies.learners.ucb import UCB1, DiscountedUCB, SlidingWindowUCB, UCBSpec, UCBTuned
from draftwise.state.learned import fresh, restore

BANDITS: list[Callable[[], Learner]] = [
    lambda: Fixed(4, arm=2),
    lambda: Uniform(4),
    lambda: UCB1(4, strength=0.3),
    lambda: UCBTuned(4),
    lambda: UCBSpec(4, delta=0.1),
    lambda: DiscountedUCB(4, discount=0.9),
    lambda: SlidingWindowUCB(4, window=20),
    lambda: GaussianThompson(4, noise=0.1),
    lambda: EXP3(4, gamma=0.3),
    lambda: EXP3Spec(4),
    lambda: SequentialHalving(4, budget=60),
    lambda: ExploreThenCommit(4, horizon=500),
]
EXPERTS: list[Callable[[], FullInformation]] = [
    lambda: Hedge(4, memory=0.99),
    lambda: NormalHedge(4, memory=0.99),
]
ALL: list[Callable[[], Chooser]] = [*BANDITS, *EXPERTS]
NAMES = [type(make()).__name__ for make in ALL]
CHANCES = (0.2, 0.7, 0.4, 0.5)


def rounds(learner: Any, rng: Random, n: int) -> list[int]:
    """Play and teach n rounds, and tell what was played."""
    played = []
    for _ in range(n):
        arm, chance = learner.choose(range(4), rng)
        won = [float(rng.random() < p) for p in CHANCES]
        if hasattr(learner, "learn_all"):
            learner.learn_all([1.0 - x for x in won])
        else:
            learner.update(arm, won[arm], chance)
        played.append(arm)
    return played


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_only_allowed_arms_are_played(make: Callable[[], Any]) -> None:
    learner, rng = make(), Random(1)
    for allowed in ([0, 1, 2, 3], [1, 3], [0], [0, 2, 3], [3]) * 20:
        arm, chance = learner.choose(allowed, rng)
        assert arm in allowed
        assert not chance <= 0.0 and not chance > 1.0
        if hasattr(learner, "learn_all"):
            learner.learn_all([0.1 * i for i in range(4)])
        else:
            learner.update(arm, rng.random(), chance)


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_state_survives_json_and_goes_on_the_same(make: Callable[[], Any]) -> None:
    learner = make()
    rounds(learner, Random(2), 60)
    saved = json.loads(json.dumps(asdict(learner)))
    copy = type(learner)(**saved)
    assert copy == learner
    assert rounds(copy, Random(7), 60) == rounds(learner, Random(7), 60)
    assert copy == learner


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_fresh_keeps_the_options_and_nothing_else(make: Callable[[], Any]) -> None:
    learner = make()
    rounds(learner, Random(2), 30)
    assert fresh(learner) == make()


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_abort_undoes_choose(make: Callable[[], Any]) -> None:
    learner = make()
    rounds(learner, Random(2), 40)
    learner.abort(learner.choose(range(4), Random(3))[0])  # eliminations that were due happen here
    before = asdict(learner)
    chosen = [learner.choose(range(4), Random(seed))[0] for seed in range(5)]
    for arm in chosen:
        learner.abort(arm)
    assert asdict(learner) == before


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_feedback_from_before_a_restart_is_welcome(make: Callable[[], Any]) -> None:
    learner = make()
    rounds(learner, Random(2), 10)
    flying = [learner.choose(range(4), Random(seed)) for seed in range(3)]
    back = restore(type(learner), json.loads(json.dumps(asdict(learner))))
    for arm, chance in flying[:2]:
        if hasattr(back, "update"):
            back.update(arm, 0.5, chance)
    back.abort(flying[2][0])
    counts = asdict(back).get("flight", 0)
    assert counts in (0, [0, 0, 0, 0])
    assert len(back.estimates()) == 4


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_one_arm_is_enough(make: Callable[[], Any]) -> None:
    learner = type(make())(1)
    for _ in range(5):
        arm, chance = learner.choose([0], Random(0))
        assert arm == 0
        if hasattr(learner, "learn_all"):
            learner.learn_all([0.5])
        else:
            learner.update(arm, 0.5, chance)


@pytest.mark.parametrize("make", [m for m in ALL if type(m()) not in (Fixed, Uniform)])
def test_the_best_arm_is_played_most(make: Callable[[], Any]) -> None:
    played = [arm for seed in range(10) for arm in rounds(make(), Random(seed), 500)]
    assert max(range(4), key=played.count) == 1


def test_linucb_keeps_its_state_too() -> None:
    learner, rng = LinUCB(3, 2, strength=0.2), Random(0)
    for _ in range(30):
        arm, chance = learner.choose(range(3), rng, [1.0, rng.random()])
        learner.update(arm, rng.random(), chance, [1.0, 0.5])
    assert LinUCB(**json.loads(json.dumps(asdict(learner)))) == learner
    assert fresh(learner) == LinUCB(3, 2, strength=0.2)
    before = asdict(learner)
    learner.abort(learner.choose([0, 2], rng, [1.0, 0.1])[0])
    assert asdict(learner) == before


def test_fixed_falls_back_to_the_first_allowed() -> None:
    assert Fixed(3, arm=1).choose([0, 2], Random(0)) == (0, 1.0)
    assert Fixed(3, arm=1).estimates() == [0.0, 1.0, 0.0]


def test_uniform_is_uniform() -> None:
    rng = Random(0)
    picks = [Uniform(3).choose([0, 2], rng) for _ in range(4000)]
    assert {chance for _, chance in picks} == {0.5}
    assert sum(arm == 2 for arm, _ in picks) / 4000 == pytest.approx(0.5, abs=0.03)
    assert Uniform(4).estimates() == [0.25, 0.25, 0.25, 0.25]


class Last(Random):
    """The highest uniform number there is."""

    def random(self) -> float:
        return 1.0 - 2.0**-53


def test_a_rounding_error_never_draws_a_weight_of_zero() -> None:
    weights = [0.1] * 10 + [0.2, 0.0]
    for n in range(2, 11):
        arm, chance = draw(weights[n:], Last())
        assert weights[n:][arm] > 0.0
        assert chance == pytest.approx(weights[n:][arm] / sum(weights[n:]))
    assert draw([0.0, 0.0], Last()) == (1, 0.5)

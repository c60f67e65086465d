"""Cost of one choice and one update.

Every learner; whole rounds of TapOut's token level, with drafts of 1 to 16 tokens and of 1 to its maximum;
and the cost of full information per token and arm.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Context
from draftwise.core.outcomes import Feedback, Grade, Outcome
from draftwise.policies.catalogue import method
from draftwise.policies.learners.linucb import LinUCB
from draftwise.policies.recorders.cursors import Cursor
from studies.common.learners import BANDITS, EXPERTS


def bandit(learner: Any, rng: Random) -> Callable[[], None]:
    """One choice and its 0/1 reward; arm i of n succeeds with chance (i + 1) / (n + 2)."""
    everyone, n = range(learner.arms), learner.arms

    def step() -> None:
        arm, chance = learner.choose(everyone, rng)
        learner.update(arm, float(rng.random() * (n + 2) < arm + 1), chance)

    return step


def contextual(learner: LinUCB, rng: Random) -> Callable[[], None]:
    """The same with a constant and random features."""
    everyone, n = range(learner.arms), learner.arms

    def step() -> None:
        features = [1.0, *(rng.random() for _ in range(learner.dimensions - 1))]
        arm, chance = learner.choose(everyone, rng, features)
        learner.update(arm, float(rng.random() * (n + 2) < arm + 1), chance, features)

    return step


def expert(learner: Any, rng: Random) -> Callable[[], None]:
    """One choice and the losses of all arms, from a table of 997 rounds."""
    everyone, n = range(learner.arms), learner.arms
    table = [[rng.random() * (1.0 - i / (2 * n)) for i in everyone] for _ in range(997)]
    at = 0

    def step() -> None:
        nonlocal at
        at = (at + 1) % 997
        learner.choose(everyone, rng)
        learner.learn_all(table[at])

    return step


def rounds_of(policy: str, longest: int, rng: Random) -> Callable[[], None]:
    """One decision and what came of it, drafts of 1 to `longest` tokens, any number of them accepted."""
    made, here = method(policy, ["model"]).policy, Context()

    def step() -> None:
        decision = made.choose(here, rng)
        drafted = rng.randrange(1, longest + 1)
        made.learn(Feedback(0, decision, (Outcome(0, rng.randrange(drafted + 1), drafted),)))

    return step


def cursor(length: int, rng: Random, *, sampled: bool) -> Callable[[], None]:
    """One committed token for one arm; under greedy its grade is 0 or 1."""
    one = Cursor(length)
    grades = [
        Grade(x, x) for x in (rng.random() if sampled else float(rng.random() < 0.6) for _ in range(997))
    ]
    at = 0

    def step() -> None:
        nonlocal at
        at = (at + 1) % 997
        one.step(grades[at])

    return step


def many(benchmark: Any, step: Callable[[], None]) -> None:
    """Steps differ, so what counts is the mean of a thousand: the least of five such runs."""
    benchmark.pedantic(step, iterations=1000, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("kind", BANDITS)
def test_bandit(benchmark: Any, kind: type[Any]) -> None:
    """Seven arms."""
    many(benchmark, bandit(kind(7), Random(0)))


@pytest.mark.parametrize("dimensions", [4, 6])
def test_linucb(benchmark: Any, dimensions: int) -> None:
    """Seven arms."""
    many(benchmark, contextual(LinUCB(7, dimensions), Random(0)))


@pytest.mark.parametrize("arms", [7, 64])
@pytest.mark.parametrize("kind", EXPERTS)
def test_expert(benchmark: Any, kind: type[Any], arms: int) -> None:
    """The losses of all arms in each round."""
    many(benchmark, expert(kind(arms), Random(0)))


@pytest.mark.parametrize("longest", [16, 128])
@pytest.mark.parametrize("policy", ["tapout-seq-ucb1", "tapout-token-ucb1", "tapout-token-ts"])
def test_round(benchmark: Any, policy: str, longest: int) -> None:
    """A whole round of TapOut."""
    many(benchmark, rounds_of(policy, longest, Random(0)))


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_cursor(benchmark: Any, sampled: bool) -> None:
    """One committed token for one arm, drafts of eight."""
    many(benchmark, cursor(8, Random(0), sampled=sampled))

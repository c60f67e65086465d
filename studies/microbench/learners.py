"""Microseconds per choose and learn, on this machine: `python -m studies.microbench.learners`.

Every learner; whole rounds of TapOut's token level, with drafts of 1 to 16 tokens and of 1 to its cap; and
what full information costs for each token and arm.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from timeit import repeat
from typing import Any

from draftwise.core.arms import Context
from draftwise.core.outcomes import Feedback, Grade, Outcome
from draftwise.policies.catalogue import method
from draftwise.policies.learners.adanormalhedge import AdaNormalHedge
from draftwise.policies.learners.beta import BetaThompson
from draftwise.policies.learners.commit import ExploreThenCommit
from draftwise.policies.learners.ducb import DiscountedUCB
from draftwise.policies.learners.exp3 import EXP3
from draftwise.policies.learners.exp3spec import EXP3Spec
from draftwise.policies.learners.fixed import Fixed
from draftwise.policies.learners.gaussian import GaussianThompson
from draftwise.policies.learners.halving import SequentialHalving
from draftwise.policies.learners.hedge import Hedge
from draftwise.policies.learners.leader import FollowTheLeader
from draftwise.policies.learners.linucb import LinUCB
from draftwise.policies.learners.normalhedge import NormalHedge
from draftwise.policies.learners.swucb import SlidingWindowUCB
from draftwise.policies.learners.ucb import UCB1
from draftwise.policies.learners.ucbspec import UCBSpec
from draftwise.policies.learners.ucbtuned import UCBTuned
from draftwise.policies.learners.uniform import Uniform
from draftwise.policies.recorders.cursors import Cursor

BANDITS: tuple[type[Any], ...] = (
    Fixed,
    Uniform,
    UCB1,
    UCBTuned,
    UCBSpec,
    DiscountedUCB,
    SlidingWindowUCB,
    GaussianThompson,
    BetaThompson,
    EXP3,
    EXP3Spec,
    SequentialHalving,
    ExploreThenCommit,
)
EXPERTS: tuple[type[Any], ...] = (FollowTheLeader, Hedge, AdaNormalHedge, NormalHedge)


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


def microseconds(step: Callable[[], None], rounds: int) -> float:
    """The fastest of five runs, per round."""
    return min(repeat(step, number=rounds, repeat=5)) / rounds * 1e6


def main() -> None:
    """Print one line per learner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000, help="rounds per run; five runs are made")
    rounds = parser.parse_args().rounds
    rng = Random(0)
    for kind in BANDITS:
        print(f"{kind.__name__:20}{7:4} arms {microseconds(bandit(kind(7), rng), rounds):8.2f} us")
    for d in (4, 6):
        name = f"LinUCB d={d}"
        print(f"{name:20}{7:4} arms {microseconds(contextual(LinUCB(7, d), rng), rounds):8.2f} us")
    for kind in EXPERTS:
        for arms in (7, 64):
            print(f"{kind.__name__:20}{arms:4} arms {microseconds(expert(kind(arms), rng), rounds):8.2f} us")
    for policy in ("tapout-seq-ucb1", "tapout-token-ucb1", "tapout-token-ts"):
        for longest in (16, 128):
            took = microseconds(rounds_of(policy, longest, rng), rounds // 5)
            print(f"{policy:20}{longest:4} tokens {took:6.2f} us a round")
    for sampled in (False, True):
        took, how = microseconds(cursor(8, rng, sampled=sampled), rounds), "sampled" if sampled else "greedy"
        print(f"{'Cursor, ' + how:20}{8:4} tokens {took:6.2f} us a token and arm")


if __name__ == "__main__":
    main()

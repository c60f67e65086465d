"""Replay of a trace, policy by policy; without a given trace, of a simulated one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from draftwise.measure.trace import Costs, Replay, Trace, read_costs
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.catalogue import method
from tests.measure.trace.sims import COSTS, recorded

TEXTS = 100
POLICIES = (
    "none",
    "static-4",
    "ucb1",
    "ucb1?arms=drafters*lengths",
    "metasd-ucb?reward=block-efficiency",
    "ucbspec",
    "exp3spec",
    "tapout-seq-ucb1?length=16",
    "tapout-seq-ts?length=16",
    "tapout-token-ucb1?length=16",
    "tapout-token-ts?length=16",
    "linucb",
    "hedgespec",
    "hedgespec?every=16",
    "draft-all",
    "auto",
)
World = tuple[Trace, Costs, list[ReplayState]]


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A trace, what its passes cost, and its texts, at most a hundred of them."""
    folder = request.config.getoption("--replayed-trace")
    if folder:
        trace, costs = Trace(Path(folder)), read_costs(str(Path(folder) / "costs.json"))
    else:
        trace, costs = recorded(tmp_path_factory.mktemp("trace"), n=12, length=16), COSTS
    every = max(1, len(trace) // TEXTS)
    return trace, costs, [ReplayState(recording) for recording in islice(trace, 0, None, every)]


@pytest.mark.parametrize("policy", POLICIES)
def test_replay(benchmark: Any, world: World, policy: str) -> None:
    """All texts once, with a new policy each time."""
    trace, costs, stages = world
    rounds = 0

    def fresh() -> tuple[tuple[Replay], dict[str, Any]]:
        return (Replay(trace, method(policy, trace.team(policy)), costs),), {}

    def play(loop: Replay) -> float:
        nonlocal rounds
        start = thread_time()
        rounds = sum(1 for stage in stages for _ in loop.replay(stage))
        return thread_time() - start

    benchmark.pedantic(play, setup=fresh, rounds=3)
    benchmark.extra_info["us a round"] = 1e6 * benchmark.stats.stats.min / rounds

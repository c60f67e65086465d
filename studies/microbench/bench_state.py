"""What a shared state file costs the thread in which `auto` learns: its numbers are taken, others' added."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from draftwise.policies.catalogue import method
from draftwise.state.file import StateFile

DRAFTERS = ["ngram", "suffix", "zoo:general"]


def replica(path: Path, seed: int) -> StateFile:
    """A replica that has learned from some hundred rounds."""
    policy: Any = method("auto", DRAFTERS).policy
    file = StateFile(path, policy, name="auto", target="t", drafters=dict.fromkeys(DRAFTERS, "d"))
    file.load()
    learn(policy, Random(seed), 500)
    return file


def learn(policy: Any, rng: Random, rounds: int) -> None:
    for _ in range(rounds):
        policy.acceptance[rng.randrange(len(DRAFTERS))].learn(rng.randrange(4), [1.0, 0.0])
        policy.pass_prices[rng.randrange(4)].add(rng.randrange(1, 17), 0.01 + 0.001 * rng.random())


def test_take(benchmark: Any, tmp_path: Path) -> None:
    """Once before a save."""
    file = replica(tmp_path / "state.json", 0)
    file.save()
    benchmark.extra_info["bytes"] = file.path.stat().st_size
    benchmark(file.taken)


def test_adopt(benchmark: Any, tmp_path: Path) -> None:
    """Once after a save, if others have saved meanwhile."""
    one, other = (replica(tmp_path / "state.json", seed) for seed in range(2))
    one.save()

    def found() -> tuple[tuple[Any, ...], dict[str, Any]]:
        learn(one.policy, Random(2), 20)
        one.save()
        return (other.exchange(other.taken()),), {}

    benchmark.pedantic(other.adopt, setup=found, rounds=20)

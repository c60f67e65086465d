"""The oracle over composite drafts: brute force agrees, and it is never above that of single drafters."""

from __future__ import annotations

from random import Random

import pytest

from draftwise.measure.trace.costs import Costs, DrafterCosts
from draftwise.measure.trace.files import Recording
from draftwise.measure.trace.oracle import best, best_composite
from draftwise.measure.trace.state import ReplayState
from tests.measure.trace.test_oracle import FREE, small

PRICED = Costs(
    passes=(1.0, 1.1, 1.3, 1.6, 2.0),
    drafters={
        "a": DrafterCosts(first=0.05, step=0.1, catch_up=0.02),
        "b": DrafterCosts(step=0.01),
        "c": DrafterCosts(first=0.2, step=0.02, catch_up=0.07),
    },
    name="priced",
)


def brute(
    one: Recording, costs: Costs, at: int = 0, so_far: int = 0, read: dict[str, int] | None = None
) -> float:
    """The least seconds from `at` on, where the draft of this round has `so_far` tokens."""
    read, prompt = read or {}, one.prompt.size
    if at >= one.committed:
        return 0.0
    found = [costs.target(1 + so_far) + brute(one, costs, at + 1, 0, read)]
    for name, answers in one.drafts.items():
        mine = costs.of(name)
        late = mine.catch_up * (prompt + at - read.get(name, 0)) if mine.catch_up else 0.0
        for asked in range(1, min(answers.start.shape[1], one.budget - at - 1) + 1):
            first, n = answers.start[at, asked - 1], answers.count[at, asked - 1]
            right = 0
            while right < n and answers.tokens[first + right] == one.text[at + right]:
                right += 1
            for k in range(1, min(right, one.committed - at - 1, answers.start.shape[1] - so_far) + 1):
                then = {**read, name: prompt + at + k}
                found.append(mine.draft(k) + late + brute(one, costs, at + k, so_far + k, then))
            if not right and not so_far and mine.catch_up:
                then = {**read, name: prompt + at + 1}
                wrong = min(int(n), 1)
                found.append(
                    mine.draft(wrong) + late + costs.target(1 + wrong) + brute(one, costs, at + 1, 0, then)
                )
    return min(found)


@pytest.mark.parametrize("costs", [FREE, PRICED], ids=lambda costs: costs.name)
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_least_over_all_chains_of_drafters(seed: int, costs: Costs) -> None:
    one = small(Random(seed), tokens=5, length=3)
    stage = ReplayState(one)
    found = best_composite(stage, costs)
    assert found == pytest.approx(brute(one, costs))
    assert found <= best(stage, costs).seconds + 1e-9


def test_two_drafters_that_follow_each_other_save_a_pass() -> None:
    found = [(best(stage, FREE).seconds, best_composite(stage, FREE)) for stage in map(ReplayState, texts())]
    assert all(new <= old + 1e-9 for old, new in found) and sum(old - new for old, new in found) > 1.0


def texts() -> list[Recording]:
    return [small(Random(seed), tokens=12) for seed in range(8)]

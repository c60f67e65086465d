"""The oracles are the best there is: brute force agrees, and no policy beats them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from draftwise.errors import UserError
from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.costs import Costs, DrafterCosts, rising
from draftwise.measure.trace.files import RecordedDrafts, Recording
from draftwise.measure.trace.oracle import Step, best, best_composite, exactly, fixed
from draftwise.measure.trace.results import compute_oracle, replayed
from draftwise.measure.trace.state import ReplayState
from draftwise.policies.catalogue import method
from tests.measure.trace.sims import COSTS, prompts, recorded

FREE = Costs(passes=(1.0,), others=DrafterCosts(step=0.1), name="no catching up")


def small(rng: Random, *, tokens: int = 6, length: int = 3, names: str = "abc") -> Recording:
    """A text of a few tokens out of two, with random drafts, shorter ones not always beginnings of longer."""
    text = [rng.randrange(2) for _ in range(tokens + length)]
    answers = {}
    for name in names:
        flat: list[int] = []
        start, count = np.zeros((tokens, length), np.int32), np.zeros((tokens, length), np.int32)
        for at in range(tokens):
            for n in range(1, length + 1):
                start[at, n - 1], count[at, n - 1] = len(flat), rng.randint(0, n)
                flat += [t if rng.random() < 0.7 else 1 - t for t in text[at : at + n]]
        answers[name] = RecordedDrafts(
            tokens=np.array(flat, np.int32),
            start=start,
            count=count,
            hint=np.zeros(tokens),
            signals=np.zeros((len(flat), 4)),
        )
    return Recording(
        name="r",
        category="c",
        prompt=np.zeros(3, np.int32),
        text=np.array(text, np.int32),
        committed=tokens,
        budget=tokens + rng.randint(0, 2),
        ended=True,
        probs=np.zeros(0),
        drafts=answers,
    )


def brute(one: Recording, costs: Costs, at: int = 0, read: dict[str, int] | None = None) -> float:
    """The least seconds from `at` on, by trying every drafter and every beginning of each of its drafts."""
    read = read or {}
    if at >= one.committed:
        return 0.0
    least = costs.target(1) + brute(one, costs, at + 1, read)
    for name, answers in one.drafts.items():
        mine = costs.of(name)
        here = one.prompt.size + at
        for k in range(min(answers.start.shape[1], one.budget - at - 1)):
            first = int(answers.start[at, k])
            most = int(answers.count[at, k])
            for n in range(min(most, 1), most + 1):
                drafted = answers.tokens[first : first + n].tolist()
                came = one.text[at : at + n].tolist()
                right = next((i for i in range(n) if drafted[i] != came[i]), n)
                late = mine.catch_up * (here - read.get(name, 0))
                seconds = mine.draft(n) + late + costs.target(1 + n)
                after = read | {name: here + right + 1}
                least = min(least, seconds + brute(one, costs, at + right + 1, after))
    return least


def priced(rng: Random, names: str = "abc") -> Costs:
    """Random costs; some drafters have nothing to catch up on."""
    drafters = {
        name: DrafterCosts(
            first=rng.random() * 0.3, step=rng.random() * 0.4, catch_up=rng.choice((0.0, rng.random() * 0.1))
        )
        for name in names
    }
    return Costs(passes=tuple(rising([1 + rng.random() * 0.5 for _ in range(3)])), drafters=drafters)


@pytest.mark.parametrize("seed", range(12))
def test_brute_force_agrees(seed: int) -> None:
    rng = Random(seed)
    names = "abc" if seed % 2 else "ab"
    one, costs = small(rng, tokens=5 if seed % 2 else 6, names=names), priced(rng, names)
    found = best(ReplayState(one), costs)
    assert found.seconds == pytest.approx(brute(one, costs))
    assert _walked(one, costs, found.steps) == pytest.approx(found.seconds)


def _walked(one: Recording, costs: Costs, steps: tuple[Step, ...]) -> float:
    """What a path costs, round by round."""
    at, seconds, read = 0, 0.0, dict[str, int]()
    ends = [step.position for step in steps[1:]] + [one.committed]
    for step, end in zip(steps, ends, strict=True):
        assert step.position == at
        name, n = step.drafter, step.drafted
        seconds += costs.target(1 + n)
        if name != "none":
            late = costs.of(name).catch_up * (one.prompt.size + at - read.get(name, 0))
            seconds += costs.of(name).draft(n) + late
            read[name] = one.prompt.size + end
        assert end == at + n + 1 or (end == at + 1 and n <= 1)
        at = end
    assert at == one.committed
    return seconds


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), n=6)


@pytest.mark.parametrize("costs", [COSTS, FREE], ids=["catching up", "free"])
def test_no_policy_beats_the_oracle(costs: Costs, trace: Trace) -> None:
    stages = [ReplayState(one) for one in trace]
    least = sum(best(stage, costs).seconds for stage in stages)
    for name in (
        "none",
        "static-2",
        "ucb1",
        "ucb1?arms=drafters*stops",
        "hedgespec",
        "draft-all",
        "tapout-token-ts?length=8",
        "random?arms=drafters*lengths&lengths=0,1,2,4,8",
    ):
        for seed in range(3):
            loop = Replay(trace, method(name, trace.drafters), costs, seed=seed)
            spent = sum(r.seconds.total for stage in stages for r in loop.replay(stage))
            assert spent >= least - 1e-9, name
    for drafter in trace.drafters:
        assert least <= sum(exactly(stage, costs)[drafter] for stage in stages) + 1e-9


def test_fixed_arms_are_the_replays_of_static_policies(trace: Trace) -> None:
    stages = [ReplayState(one) for one in trace]
    for drafter in trace.drafters:
        for length in (1, 3, 8):
            loop = Replay(trace, method(f"static?length={length}&drafter={drafter}", trace.drafters), COSTS)
            spent = sum(r.seconds.total for stage in stages for r in loop.replay(stage))
            assert sum(fixed(stage, COSTS)[drafter, length] for stage in stages) == pytest.approx(spent)
    plain = Replay(trace, method("none", trace.drafters), COSTS)
    spent = sum(r.seconds.total for stage in stages for r in plain.replay(stage))
    assert sum(fixed(stage, COSTS)["none", 0] for stage in stages) == pytest.approx(spent)


def test_drafting_what_is_accepted_takes_the_fewest_rounds_but_not_the_least_time(trace: Trace) -> None:
    """DISCO's oracle has the fewest passes a drafter allows; where tokens are expensive it drafts too
    many."""
    dear = Costs(passes=(1.0,), others=DrafterCosts(step=0.9), lookups=())
    stage = ReplayState(next(iter(trace)))
    assert best(stage, dear).seconds <= min(exactly(stage, dear).values())
    assert exactly(stage, dear)["good"] > fixed(stage, dear)["none", 0] * 0.5
    free = Costs(passes=(1.0,), lookups=())
    rounds = exactly(stage, free)["good"]
    assert rounds == min(s for (who, _), s in fixed(stage, free).items() if who == "good")


def test_the_summary_adds_up(trace: Trace) -> None:
    found = compute_oracle(trace, COSTS)
    whole, *parts = found["results"]
    assert whole["category"] == "all" and len(parts) == 3
    for key in ("prompts", "new_tokens", "optimum", "none"):
        assert whole[key] == pytest.approx(sum(part[key] for part in parts))
    assert whole["optimum"] <= whole["best_fixed"]["seconds"] <= whole["none"]
    assert whole["best_fixed"]["seconds"] >= sum(part["best_fixed"]["seconds"] for part in parts) - 1e-9
    assert sorted(found["lengths"]) == [str(i) for i in range(len(trace))]


def test_a_category_called_all_counts_once(tmp_path: Path) -> None:
    asked = [replace(prompt, category="all") for prompt in prompts(2)]
    found = compute_oracle(recorded(tmp_path, asked=asked), COSTS)
    assert [row["prompts"] for row in found["results"]] == [2]
    results = replayed(Trace(tmp_path), ["static-2"], COSTS, tmp_path / "out")["results"]
    assert all(row["fraction_of_optimum"] <= 1.0 for row in results)


def test_too_many_drafters_to_follow(trace: Trace) -> None:
    one = next(iter(trace))
    names = [f"d{i}" for i in range(13)]
    crowd = replace(one, drafts={n: one.drafts["bad"] for n in names})
    behind = Costs(passes=(1.0,), others=DrafterCosts(catch_up=0.1))
    with pytest.raises(UserError, match="13 drafters with catch_up costs, of which the oracle can follow 12"):
        best(ReplayState(crowd), behind)


# -- composite drafts -------------------------------------------------------------------------------------


PRICED = Costs(
    passes=(1.0, 1.1, 1.3, 1.6, 2.0),
    drafters={
        "a": DrafterCosts(first=0.05, step=0.1, catch_up=0.02),
        "b": DrafterCosts(step=0.01),
        "c": DrafterCosts(first=0.2, step=0.02, catch_up=0.07),
    },
    name="priced",
)


def brute_composite(
    one: Recording, costs: Costs, at: int = 0, so_far: int = 0, read: dict[str, int] | None = None
) -> float:
    """The least seconds from `at` on, where the draft of this round has `so_far` tokens."""
    read, prompt = read or {}, one.prompt.size
    if at >= one.committed:
        return 0.0
    found = [costs.target(1 + so_far) + brute_composite(one, costs, at + 1, 0, read)]
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
                found.append(mine.draft(k) + late + brute_composite(one, costs, at + k, so_far + k, then))
            if not right and not so_far and mine.catch_up:
                then = {**read, name: prompt + at + 1}
                wrong = min(int(n), 1)
                found.append(
                    mine.draft(wrong)
                    + late
                    + costs.target(1 + wrong)
                    + brute_composite(one, costs, at + 1, 0, then)
                )
    return min(found)


@pytest.mark.parametrize("costs", [FREE, PRICED], ids=lambda costs: costs.name)
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_least_over_all_chains_of_drafters(seed: int, costs: Costs) -> None:
    one = small(Random(seed), tokens=5, length=3)
    stage = ReplayState(one)
    found = best_composite(stage, costs)
    assert found == pytest.approx(brute_composite(one, costs))
    assert found <= best(stage, costs).seconds + 1e-9


def test_two_drafters_that_follow_each_other_save_a_pass() -> None:
    stages = [ReplayState(small(Random(seed), tokens=12)) for seed in range(8)]
    found = [(best(stage, FREE).seconds, best_composite(stage, FREE)) for stage in stages]
    assert all(new <= old + 1e-9 for old, new in found) and sum(old - new for old, new in found) > 1.0

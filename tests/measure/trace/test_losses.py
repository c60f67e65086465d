"""Where the time went: losses add up to the time over the optimum, and the best causal rule is causal."""

from __future__ import annotations

import pytest

from draftwise.measure.trace import Costs, Replay, Trace
from draftwise.measure.trace.causal import causal
from draftwise.measure.trace.fixed import fixed
from draftwise.measure.trace.losses import KINDS, losses
from draftwise.measure.trace.oracle import best
from draftwise.measure.trace.stage import Stage
from draftwise.policies.catalogue import method
from tests.measure.trace.sims import COSTS, recorded

FREE = Costs(passes=(1.0,))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), n=6, length=16)


@pytest.mark.parametrize("costs", [COSTS, FREE], ids=["catching up", "free"])
@pytest.mark.parametrize(
    "policy", ["auto", "auto?cascades=0", "static-1", "static-4?drafter=ngram", "random", "none"]
)
def test_losses_add_up_to_the_time_over_the_optimum(trace: Trace, costs: Costs, policy: str) -> None:
    loop = Replay(trace, method(policy, trace.team(policy)), costs)
    for recording in trace:
        stage = Stage(recording)
        total, lost = losses(loop, stage)
        assert sum(lost.values()) == pytest.approx(total - best(stage, costs).seconds)
        assert set(lost) == set(KINDS)
        cascades = trace.team(policy) != trace.drafters  # may gain more than the oracle
        assert cascades or all(lost[kind] > -1e-9 for kind in KINDS if kind != "watching")
        if policy == "none":
            assert lost["no draft"] == pytest.approx(sum(lost.values()))


def test_a_draft_that_is_too_short_is_called_that(trace: Trace) -> None:
    loop = Replay(trace, method("static-1?drafter=ngram", trace.drafters), FREE)
    kinds = [losses(loop, Stage(one))[1] for one in trace]
    assert sum(k["stopped early"] for k in kinds) > 0.0


@pytest.mark.parametrize("costs", [COSTS, FREE], ids=["catching up", "free"])
def test_the_rule_in_hindsight_lies_between_the_best_fixed_arm_and_the_oracle(
    trace: Trace, costs: Costs
) -> None:
    stages = [Stage(one) for one in trace]
    rule = causal(stages, costs)
    totals: dict[tuple[str, int], float] = {}
    for stage in stages:
        for arm, seconds in fixed(stage, costs).items():
            totals[arm] = totals.get(arm, 0.0) + seconds
    within = [
        s for (_, length), s in totals.items() if length in (0, 1, 2, 4, 8, 16)
    ]  # the caps that rules have
    least = sum(best(stage, costs).seconds for stage in stages)
    assert least - 1e-9 <= rule.total <= min(within) + 1e-9
    assert len(rule.seconds) == len(stages)

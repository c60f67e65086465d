"""Rewards: literal values, all within [0, 1]."""

from __future__ import annotations

from math import nan

import pytest

from draftwise.core.outcomes import Outcome
from draftwise.errors import UserError
from draftwise.policies.recorders.bandit import REWARDS, Rate, reward


def outcome(accepted: int, drafted: int, seconds: float = nan) -> Outcome:
    return Outcome(arm=0, accepted=accepted, drafted=drafted, seconds=seconds)


@pytest.mark.parametrize("name", ["accepted", "block-efficiency", "simple"])
def test_accepted_over_the_longest(name: str) -> None:
    assert reward(name)(outcome(3, 4), 5) == 0.6
    assert reward(name)(outcome(5, 5), 5) == 1.0
    assert reward(name)(outcome(0, 0), 5) == 0.0


def test_blended_is_half_length_half_rate() -> None:
    # 1/2 * 3/6 + 1/2 * 3/4
    assert reward("blended")(outcome(3, 4), 6) == 0.625
    assert reward("blended")(outcome(0, 4), 6) == 0.0
    assert reward("blended")(outcome(0, 0), 6) == 0.0
    assert reward("blended")(outcome(6, 6), 6) == 1.0


@pytest.mark.parametrize("name", REWARDS)
def test_plain_decoding_alone_has_a_worth(name: str) -> None:
    worth = reward(name)(outcome(0, 0, seconds=0.1), 0)
    assert worth == (1.0 if name == "rate" else 0.0)


def test_rate_is_relative_to_the_best_so_far() -> None:
    rate = Rate(memory=0.5)
    assert rate(outcome(3, 4, seconds=0.5), 5) == 1.0  # 8 tokens/s
    assert rate(outcome(0, 4, seconds=0.5), 5) == 0.5  # 2 of 4: the maximum has halved
    assert rate(outcome(0, 4, seconds=0.5), 5) == 1.0  # 2 of 2
    assert rate(outcome(4, 4, seconds=0.5), 5) == 1.0  # 10 of 10
    assert rate.top == 10.0


def test_rate_forgets_slowly_by_itself() -> None:
    rate = reward("rate")
    assert rate(outcome(9, 9, seconds=0.001), 9) == 1.0  # one lucky clock reading of 10,000 tokens/s
    later = [rate(outcome(9, 9, seconds=0.1), 9) for _ in range(5000)]
    assert later[0] == pytest.approx(0.01001001, abs=1e-6)
    assert later[-1] == 1.0


def test_rate_learns_nothing_from_a_round_without_a_time() -> None:
    rate = Rate()
    assert rate(outcome(3, 4), 5) is None
    assert rate(outcome(3, 4, seconds=0.0), 5) is None
    assert rate.top == 0.0


def test_each_rate_has_a_maximum_of_its_own() -> None:
    first, second = reward("rate"), reward("rate")
    first(outcome(9, 9, seconds=0.01), 9)
    assert second(outcome(0, 9, seconds=1.0), 9) == 1.0


def test_an_unknown_reward_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match="reward=acepted: choose from accepted"):
        reward("acepted")


def test_the_scale_of_the_rate_does_not_follow_who_plays() -> None:
    """Were there one maximum, an arm that plays alone would soon earn 1, whatever the others could do."""
    rate = Rate()
    assert rate(Outcome(1, 9, 9, seconds=1.0), 9) == 1.0
    alone = [rate(Outcome(0, 0, 0, seconds=1.0), 9) for _ in range(5000)]
    assert set(alone) == {0.1}

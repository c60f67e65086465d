"""Draft lengths as arms, in worlds of counted seconds: the length of the most tokens per second wins."""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from draftwise.core.arms import Arm, Context, Stop
from draftwise.core.outcomes import Outcome
from draftwise.core.roles import RoundRecord
from draftwise.policies.catalogue import Method, method
from draftwise.policies.catalogue.compose import worth
from tests.effort import some

LENGTHS = (0, 1, 2, 4, 8)
RIGHT = 0.8  # the chance of a drafted token, a geometric distribution
POLICIES = ("ucb1?", "ucbspec?per_query=false&", "exp3spec?per_query=false&", "linucb?")


def seconds(length: int, price: float) -> float:
    """A target pass takes 1 and a drafted token its price."""
    return 1.0 + price * length


def best(price: float) -> int:
    """The most expected tokens per second (Leviathan et al. 2023, Theorem 3.8)."""
    return max(LENGTHS, key=lambda n: (1 - RIGHT ** (n + 1)) / (1 - RIGHT) / seconds(n, price))


def play(made: Method, price: float, rounds: int) -> list[int]:
    """The lengths that a policy plays in one long text."""
    rng, lengths, accepted = Random(1), list[int](), -1
    request = SimpleNamespace(id=0)
    for at in range(rounds):
        decision = made.policy.choose(Context(position=at, last_accepted=accepted), rng)
        length = made.policy.arms[decision.arm].length
        accepted = next((k for k in range(length) if rng.random() >= RIGHT), length)
        outcome = Outcome(decision.arm, accepted, length, seconds(length, price))
        seen: Any = SimpleNamespace(request=request, decision=decision, outcome=outcome)
        for feedback in made.recorder.add([cast(RoundRecord, seen)], cast(Any, None)):
            made.policy.learn(feedback)
        lengths.append(length)
    return lengths


@pytest.mark.parametrize("name", some(POLICIES, 2))
@pytest.mark.parametrize(("price", "length"), [(3.0, 0), (1.0, 0), (0.4, 2), (0.2, 4), (0.0, 8)])
def test_what_a_drafted_token_costs_decides_how_far_is_drafted(name: str, price: float, length: int) -> None:
    assert best(price) == length
    made = method(f"{name}arms=lengths&lengths={','.join(map(str, LENGTHS))}", ["lm"])
    late = Counter(play(made, price, 6_000)[3_000:])
    assert late.most_common(1)[0][0] == length


def test_the_default_reward_has_a_price_where_arms_draft_more_or_less() -> None:
    drafters, lengths = (Arm("a", 5), Arm("b", 5)), (Arm("none", 0), Arm("a", 5))
    stops = (Arm("a", 5), Arm("a", 5, stop=Stop("svip", 0.6)))
    assert [worth("", arms, "accepted") for arms in (drafters, lengths, stops)] == [
        "accepted",
        "rate",
        "rate",
    ]
    assert [worth("simple", arms, "accepted") for arms in (drafters, lengths, stops)] == ["simple"] * 3

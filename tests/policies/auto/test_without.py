"""`auto?without=PART`: each part can be taken out, and its absence shows in what is played."""

from __future__ import annotations

import pytest

from draftwise.core.arms import Context
from draftwise.errors import UserError
from draftwise.policies.auto.guard import TRIAL
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.without import PARTS
from draftwise.policies.catalogue import method
from tests.policies.auto.script import Prices, Stage, always


def test_an_unknown_part_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="without=luck: choose from costs, price"):
        method("auto?without=luck", ["ngram"])


def played(monkeypatch: pytest.MonkeyPatch, policy: str, prices: Prices) -> list[tuple[str, int, float]]:
    models = {"near": lambda text, at, rng: 0.9 - 0.6 * (text % 2), "far": always(0.1)}
    stage = Stage(monkeypatch, models, prices, texts=8, tokens=80, prompt=200)
    rounds = stage.run(policy)[2]
    return [(r.arm.name, r.drafted, r.decision.stops[0].threshold) for r in rounds]


@pytest.mark.parametrize("part", sorted(PARTS.keys() - {"guard", "hints"}))
def test_every_part_that_is_missing_changes_what_is_played(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    prices = Prices(target=lambda tokens: 10e-3 + 1e-3 * tokens, reading=0.1e-3)
    assert played(monkeypatch, f"auto?without={part}", prices) != played(monkeypatch, "auto", prices)


def test_without_the_guard_losing_goes_on() -> None:
    for policy, stands in (("auto", False), ("auto?without=guard", True)):
        made = method(policy, ["ngram"]).policy
        assert isinstance(made, AutoPolicy)
        for _ in range(int(TRIAL)):
            made.guard.add(1.1, 1.0)
        assert made.guard.stands() is stands


def test_hints_are_match_lengths() -> None:
    whole, blunt = method("auto", ["ngram"]).policy, method("auto?without=hints", ["ngram"]).policy
    assert isinstance(whole, AutoPolicy) and isinstance(blunt, AutoPolicy)
    context = Context(hints={"ngram": 12.0})
    assert whole._place(context).contexts != blunt._place(context).contexts == [1]

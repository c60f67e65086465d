"""`auto` in parts: each can be left out or replaced from outside, and its absence shows in what is played."""

from __future__ import annotations

from itertools import chain
from math import inf

import pytest

from draftwise.core.arms import Context
from draftwise.policies.auto.candidates import SLOW
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.recorder import AutoRecorder
from draftwise.policies.auto.state import JUDGED_ROUNDS
from draftwise.policies.catalogue import Method
from studies.speed.without import PARTS, without
from tests.policies.auto.script import Prices, Stage, always


def played(
    monkeypatch: pytest.MonkeyPatch, made: Method, prices: Prices, prompt: int
) -> list[tuple[str, int, float]]:
    models = {"near": lambda text, at, rng: 0.9 - 0.6 * (text % 2), "far": always(0.1)}
    stage = Stage(monkeypatch, models, prices, texts=8, tokens=80, prompt=prompt)
    rounds = stage.run(made)[2]
    return [(r.arm.name, r.drafted, r.decision.stops[0].threshold) for r in rounds]


@pytest.mark.parametrize("part", sorted(PARTS.keys() - {"guard", "hints", "lookups", "pace", "cascades"}))
def test_every_part_that_is_missing_changes_what_is_played(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    prices = Prices(target=lambda tokens: 10e-3 + 1e-3 * tokens, reading=0.1e-3)
    missing, whole = (without(name, ["near", "far"]) for name in (part, ""))
    prompt = 800 if part == "reading" else 200  # reading a short prompt pays in any case
    assert played(monkeypatch, missing, prices, prompt) != played(monkeypatch, whole, prices, prompt)


def test_without_their_guesses_lookups_are_known_by_their_own_drafts_alone() -> None:
    for part, guesses in (("", True), ("lookups", False), ("gradings", True)):
        made = without(part, ["ngram"]).recorder
        assert isinstance(made, AutoRecorder) and (made.lookups is not None) is guesses


def test_without_cascades_none_is_weighed() -> None:
    for part, least in (("", SLOW), ("cascades", inf)):
        made = without(part, ["near", "ngram", "cascade:near>ngram?match=1"]).policy
        assert isinstance(made, AutoPolicy) and made.cascades_from == least


def test_without_the_guard_losing_goes_on() -> None:
    for part, is_enabled in (("", False), ("guard", True)):
        made = without(part, ["ngram"]).policy
        assert isinstance(made, AutoPolicy)
        for _ in range(int(JUDGED_ROUNDS)):
            made.guard.add(1.1, 1.0)
        assert made.guard.is_enabled() is is_enabled


def test_hints_are_match_lengths() -> None:
    whole, blunt = (without(part, ["ngram"]).policy for part in ("", "hints"))
    assert isinstance(whole, AutoPolicy) and isinstance(blunt, AutoPolicy)
    context = Context(hints={"ngram": 12.0})
    assert whole.update_request(context).contexts != blunt.update_request(context).contexts == [1]


def test_rates_are_of_places_with_and_without_a_match() -> None:
    whole, flat = (without(part, ["ngram"]).policy for part in ("", "pace"))
    assert isinstance(whole, AutoPolicy) and isinstance(flat, AutoPolicy)
    for policy in (whole, flat):
        policy.pace.add(True, 9, 1.0)
        policy.pace.add(False, 1, 1.0)
    assert whole.pace.rate(False, 0.1) < flat.pace.rate(False, 0.1) == flat.pace.rate(True, 0.1)


def test_without_other_drafters_only_the_one_that_plays_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    made = without("others", ["near", "far"])
    rounds = Stage(monkeypatch, {"near": always(0.9), "far": always(0.9)}, texts=4).run(made)[2]
    names = set(chain.from_iterable([r.arm.drafter] for r in rounds))
    assert names <= {"none", "near", "far"}
    assert made.recorder.models is made.recorder.lookups is None  # type: ignore[attr-defined]

"""`auto` in parts: each can be left out or replaced from outside, and its absence shows in what is played."""

from __future__ import annotations

from math import inf
from random import Random

import numpy as np
import pytest

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafter_pool import DrafterPool
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Window
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.policies.auto.policy import SLOW, AutoPolicy
from draftwise.policies.auto.prices import WINDOW, PassPrice
from draftwise.policies.catalogue import Method
from draftwise.testing.distributions import markov
from draftwise.testing.target import SimTarget
from studies.speed.without import FLAT, ONE, PARTS, Without, without
from tests.policies.auto.script import Prices, Stage, always

CYCLE = np.roll(np.eye(4), 1, axis=1)  # each token is followed by the next one


def policy_without(part: str, *drafters: str) -> Without:
    variant = without(part, drafters).policy
    assert isinstance(variant, Without)
    return variant


def played(
    monkeypatch: pytest.MonkeyPatch, variant: Method, prices: Prices, prompt: int
) -> list[tuple[Arm, int, float]]:
    models = {"near": lambda text, at, rng: 0.9 - 0.6 * (text % 2), "far": always(0.1)}
    stage = Stage(monkeypatch, models, prices, texts=8, tokens=80, prompt=prompt)
    rounds = stage.run(variant)[2]
    return [(r.arm, r.drafted, r.decision.stops[0].threshold) for r in rounds]


@pytest.mark.parametrize("part", sorted({*PARTS} - {"guard", "hints", "lookups", "pace", "cascades"}))
def test_every_part_that_is_missing_changes_what_is_played(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    prices = Prices(target=lambda tokens: 10e-3 + 1e-3 * tokens, reading=0.1e-3)
    missing, whole = (without(name, ["near", "far"]) for name in (part, ""))
    prompt = 800 if part == "reading" else 200  # reading a short prompt pays in any case
    rounds = played(monkeypatch, missing, prices, prompt)
    assert rounds != played(monkeypatch, whole, prices, prompt)
    lengths = {arm.length for arm, *_ in rounds}
    thresholds = {threshold for _, drafted, threshold in rounds if drafted}
    assert (lengths <= {0, ONE}) is (part == "length")
    assert (thresholds == {0.0}) is (part in ("stop", "price"))


def test_nothing_is_left_out_for_an_empty_name_and_no_other_part_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prices = Prices()
    whole = played(monkeypatch, without("", ["near", "far"]), prices, 200)
    models = {"near": lambda text, at, rng: 0.9 - 0.6 * (text % 2), "far": always(0.1)}
    usual = Stage(monkeypatch, models, prices, texts=8, tokens=80, prompt=200).run("auto")[2]
    assert whole == [(r.arm, r.drafted, r.decision.stops[0].threshold) for r in usual]
    with pytest.raises(ValueError, match="no part 'text' of auto"):
        without("text", ["near"])


def test_drafts_have_at_most_the_length_that_is_asked_for() -> None:
    for part, lengths in (("", (1, 2, 3, 4, 5)), ("length", (5,))):
        variant = without(part, ["near"], length=5).policy
        assert isinstance(variant, AutoPolicy) and variant.lengths == lengths


@pytest.mark.parametrize(("part", "each"), [("costs", FLAT), ("price", 0.0)])
def test_a_price_that_is_not_measured_is_a_share_of_a_plain_pass(part: str, each: float) -> None:
    policy, measured = policy_without(part, "near"), PassPrice()
    for tokens, seconds in ((1, 0.010), (4, 0.020)) * 4:
        measured.add(tokens, seconds)
        policy.passes(1).add(tokens, seconds)
        policy.draft_price(0).add(4, 0, 0.5, 1, 1)
    assert measured.extra(1, 3)[3] == pytest.approx(0.010)
    assert policy.passes(1)(1) == measured(1) == pytest.approx(0.010)
    assert policy.passes(1).extra(1, 3)[3] == pytest.approx(3 * each * 0.010)
    assert policy.draft_price(0)(1) == (0.0, 0.0)


def test_without_their_guesses_lookups_are_known_by_their_own_drafts_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    guess = DrafterPool.guess

    def spy(self: DrafterPool, name: str, request: Request, at: int, arm: Arm) -> tuple[int, ...] | None:
        asked.append(name)
        return guess(self, name, request, at, arm)

    monkeypatch.setattr(DrafterPool, "guess", spy)
    for part in ("", "lookups"):
        asked.clear()
        variant, drafters = without(part, ["a", "b"]), {"a": NgramDrafter(max=2), "b": NgramDrafter(max=3)}
        loop = Loop(SimTarget(markov(CYCLE), len(CYCLE)), drafters, variant.policy, variant.recorder)
        rounds = list(loop.run([[0, 1, 2, 3] * 2], Sampling(max_new_tokens=60)))
        assert bool(asked) is (part == "")
        assert isinstance(variant.policy, Without)
        assert sum(one.seen for one in variant.policy.acceptance) > 0.0
        assert any(round.drafted for round in rounds)


def test_without_gradings_models_are_known_by_their_own_drafts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("", "gradings"):
        stage = Stage(monkeypatch, {"near": always(0.9), "far": always(0.1)}, texts=4)
        rounds = stage.run(without(part, ["near", "far"]))[2]
        assert any(round.seconds.grade for round in rounds) is (part == "")
        assert (rounds[1].arm.length > 0) and {round.arm.drafter for round in rounds[1:]} >= {"near"}


def test_without_cascades_none_is_weighed() -> None:
    for part, least in (("", SLOW), ("cascades", inf)):
        assert policy_without(part, "near", "ngram", "cascade:near>ngram?match=1").cascades_from == least


def test_without_the_guard_losing_goes_on() -> None:
    for part, goes_on in (("", False), ("guard", True)):
        guard = policy_without(part, "ngram").guards[0]
        for _ in range(WINDOW):
            guard.add(1.1, 1.0)
        assert guard.allows(0.5, 1) is goes_on


def test_hints_are_match_lengths() -> None:
    for part, contexts in (("", [0, 2, 6]), ("hints", [0, 1, 1])):
        hints = [Context(request=k, hints={"ngram": hint}) for k, hint in enumerate((0.0, 2.0, 12.0))]
        policy = policy_without(part, "ngram")
        for context in hints:
            policy.choose(context, Random(0))
        assert [policy.texts[k].contexts[0] for k in range(3)] == contexts


def test_rates_are_of_places_with_and_without_a_match() -> None:
    for part, rates in (("", [25 / 1.3, 105 / 1.3]), ("pace", [50.0, 50.0])):
        policy = policy_without(part, "ngram")
        policy.passes(1).add(1, 0.1)
        for matched, tokens in ((True, 90), (False, 10)):
            policy.rates[0].add(matched, tokens, 1.0, 1)
        assert [policy.rate(1, matched) for matched in (False, True)] == pytest.approx(rates)


def test_what_was_long_ago_counts_as_much_without_forgetting() -> None:
    for part, tested in (("", 211.0), ("forgetting", 400.0)):
        policy = policy_without(part, "near")
        for _ in range(400):
            policy.learn(Feedback(0, Decision(0), windows=(Window(0, 0, (0.0,)),)))
        assert policy.acceptance[0].tested[0][0] == pytest.approx(tested, rel=0.2)

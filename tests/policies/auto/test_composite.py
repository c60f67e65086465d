"""Composite drafts of `auto`: which names are cascades, when a lookup takes over, and what the parts show."""

from __future__ import annotations

from random import Random

import pytest

from draftwise.core.arms import NEVER, Context, Decision, HandOver, Stop
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.policies.auto.candidates import (
    END,
    TAKEN,
    Candidate,
    Prefix,
    best_cascade,
    best_length,
    cascades,
    rules,
    windows,
)
from draftwise.policies.auto.costs import size_class
from draftwise.policies.auto.offers import offers
from draftwise.policies.auto.policy import TRUSTED, AutoPolicy
from draftwise.policies.auto.state import RequestState
from draftwise.policies.catalogue import method
from draftwise.policies.catalogue.auto import team

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
FLAT = [0.0] * 17


def test_cascades_are_known_by_their_names() -> None:
    names = [
        "ngram",
        "lm:a",
        "cascade:lm:a>ngram?match=1",
        "cascade:lm:a>ngram?first=2",
        "cascade:b>ngram?match=2",
    ]
    assert cascades(names) == {2: 1}
    assert cascades(names[2:]) == {}  # its first part is not there


def test_a_lookup_takes_over_where_it_is_worth_more_than_the_model() -> None:
    curve, price = [0.8, 0.6, 0.4], (0.1, 0.05, FLAT)
    tails = {1: [0.2], 2: [0.9, 0.8, 0.7], 3: [0.1, 0.05]}
    (found,) = best_cascade(7, Prefix(curve, price), 0.5, lambda of: tails.get(of, []), 1.0, LENGTHS)
    alone = best_length(7, curve, price, 1.0, LENGTHS)
    assert (found.drafter, found.prefix_length) == (7, alone.length) == (7, 3)
    inside = {hand_over.match: hand_over.inside for hand_over in found.hand_overs}
    assert [hand_over.match for hand_over in found.hand_overs] == [1, 2, 3, 4, 5, 9, 17]
    assert inside[1] is False and inside[2] is True and inside[3] is False
    assert found.hand_overs[1].tokens >= 3 and found.hand_overs[3] == HandOver(4, 0, False)
    assert found.gain == pytest.approx(alone.gain + 0.5 * 0.8 * 0.2) and found.length >= alone.length


def test_no_draft_is_longer_than_what_may_be_tried() -> None:
    """A pass grows step by step; `extra` ends where it does."""
    for most in range(1, 17):
        for lengths in (LENGTHS, (4,), (16,)):
            found = best_cascade(
                0, Prefix([0.9] * 20, (0.0, 0.1, FLAT[: most + 1])), 0.5, lambda of: [0.9] * 20, 1.0, lengths
            )
            assert all(worth.prefix_length <= worth.length <= most for worth in found)
            assert found or lengths != LENGTHS


def test_what_is_added_must_pay_for_a_longer_pass() -> None:
    """It is paid for whether the model's tokens are right or not."""
    dear = [0.3 * n for n in range(17)]
    tail = [0.9, 0.5]
    for right, adds in ((0.9, True), (0.3, False)):
        found = best_cascade(
            0, Prefix([right], (-1.0, 0.0, dear)), 0.5, lambda of: tail * (of == 2), 1.0, LENGTHS
        )
        assert bool(found) is adds
        assert not found or found[0].hand_overs[0] == HandOver(2, 2)


def test_where_the_model_does_not_pay_there_is_no_cascade() -> None:
    assert best_cascade(0, Prefix([], (0.0, 0.1, FLAT)), 0.5, lambda of: [0.9], 1.0, LENGTHS) == []
    assert best_cascade(0, Prefix([0.3], (0.5, 0.1, FLAT)), 0.5, lambda of: [0.9] * 9, 1.0, LENGTHS) == []
    none = best_cascade(0, Prefix([0.9], (0.0, 0.1, FLAT)), 0.5, lambda of: [], 1.0, LENGTHS)
    assert none == [], "the lookup has nothing"


def test_a_models_confidence_is_judged_by_its_own_tokens() -> None:
    """What the lookup adds has signals of another kind."""
    names = ["lm:a", "ngram", "cascade:lm:a>ngram?match=1"]
    policy = AutoPolicy(*team(names, (4,)))
    arm = next(i for i, one in enumerate(policy.arms) if one.drafter == names[2])
    signals = tuple(Signals(0.9, 0.1, 0.3, 0.9) for _ in range(4))
    for prefix_length in (1, 3):
        before = policy.calibrations[0].seen
        outcome = Outcome(arm, 4, 4, signals=signals, prefix_length=prefix_length, match=2)
        policy.learn(Feedback(0, Decision(arm), (outcome,)))
        assert policy.calibrations[0].seen - before == prefix_length


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("options", "least"), [("", 10e-3), ("?cascades=0", 0.0), ("?cascades=80", 80e-3)])
def test_a_cascade_is_weighed_where_a_pass_takes_long_enough(options: str, least: float, batch: int) -> None:
    for seconds in (1e-3, 9.9e-3, 10.1e-3, 79e-3, 81e-3):
        expected = {0, 2} if seconds >= least else {0}
        assert _weighed(f"auto{options}", seconds, batch) == expected


def _weighed(name: str, seconds: float, batch: int) -> set[int]:
    """Who is worth something to a batch whose passes take so long, with a model that is nearly free."""
    policy = method(name, ["lm:a", "ngram", "cascade:lm:a>ngram?match=1"]).policy
    assert isinstance(policy, AutoPolicy)
    policy.passes[size_class(batch)].add(batch, seconds, requests=batch)
    policy.passes[size_class(batch)].add(2 * batch, seconds, requests=batch)
    for _ in range(4):
        policy.draft_cost(0).drafted(1, 0, 1e-5 * seconds, mates=batch, batch=batch)
    policy.skills[0].learn(0, 0, (1.0,))
    policy.skills[2].learn(0, TAKEN, (1.0,))
    policy.skills[2].learn(0, 3, (1.0, 1.0))
    place = RequestState([0, 0, 0], price=1.0)
    candidates = offers(policy, Context(request=0, batch_size=batch), place, policy.pass_cost(batch))
    return {worth.drafter for worth in candidates}


def test_a_lookup_begins_no_cascade() -> None:
    """It is known as one from the first round on, whatever it is called."""
    policy = AutoPolicy(*team(["mine", "ngram", "cascade:mine>ngram?match=1"], LENGTHS), cascades_from=0.0)
    for tokens in (1, 2):
        policy.passes[0].add(tokens, 1e-3)
    policy.looks_up = (True, True, False)
    policy.skills[0].learn(0, 1, (1.0,))
    policy.skills[2].learn(0, TAKEN, (1.0,))
    policy.skills[2].learn(0, 3, (1.0, 1.0))
    for _ in range(4):
        policy.draft_cost(0).drafted(1, 0, 1e-5)
    decision = policy.choose(Context(request=0, hints={"mine": 2.0}), Random(0))
    assert policy.arms[decision.arm].drafter != "cascade:mine>ngram?match=1"
    candidates = offers(policy, Context(request=0), RequestState([1, 0, 0], price=1.0), policy.pass_cost(1))
    assert {worth.drafter for worth in candidates} == {0}


def test_the_end_of_its_share_ends_the_first_part() -> None:
    gain = Stop("gain", 0.3)
    assert rules(gain, 0) == (gain,) and rules(NEVER, 1) == (END,)
    assert rules(gain, 3) == (gain, gain, END)


@pytest.mark.parametrize(
    ("prefix_length", "right", "drafted", "first", "second"),
    [
        (2, 0, 8, (0.0,), ()),
        (2, 1, 8, (1.0, 0.0), ()),
        (2, 2, 8, (1.0, 1.0), (0.0,)),
        (2, 5, 8, (1.0, 1.0), (1.0, 1.0, 1.0, 0.0)),
        (2, 8, 8, (1.0, 1.0), (1.0,) * 6),
        (8, 8, 8, (1.0,) * 8, ()),
    ],
)
def test_the_second_part_is_tested_where_all_of_the_first_is_right(
    prefix_length: int, right: int, drafted: int, first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    assert windows(prefix_length, right, drafted) == (first, second)


@pytest.mark.parametrize("cascade", [False, True])
def test_a_draft_stops_by_what_its_own_tokens_cost(cascade: bool) -> None:
    """Up to four tokens add nothing to a pass, and each further one as much as the pass."""
    policy = AutoPolicy(*team(["lm:a", "ngram", "cascade:lm:a>ngram?match=1"], LENGTHS))
    policy.passes[0].extra = [max(0.0, n - 4.0) for n in range(17)]
    for _ in range(4):
        policy.draft_cost(0).drafted(1, 0, 0.01)
    policy.calibrations[0].seen = 1e3
    each = policy.draft_cost(0).price(1)[1] / policy.skills[0].mean
    for length, dear in ((3, 0.0), (4, 0.0), (8, 0.5), (16, 0.75)):
        worth = (
            Candidate(2, 16, 0.0, 0.0, 1.0, prefix_length=length)
            if cascade
            else Candidate(0, length, 0.0, 0.0, 1.0)
        )
        expected = 0.1 * (each + dear / policy.skills[0].mean)
        assert policy._stop(worth, policy.pass_cost(1), 1, 0.1).threshold == pytest.approx(expected)


def test_a_draft_whose_price_is_not_known_is_not_stopped() -> None:
    """Gradings calibrate a model before its first call."""
    policy = AutoPolicy(*team(["model"], LENGTHS))
    policy.looks_up = (False,)
    policy.calibrations[0].seen = TRUSTED
    worth = Candidate(0, 1, 0.5, 0.0, 0.5, trial=True)
    assert policy._stop(worth, policy.pass_cost(1), 1, 100.0).threshold == 0.0

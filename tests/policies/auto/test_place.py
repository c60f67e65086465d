"""What `auto` knows of a place of a text before it drafts."""

from __future__ import annotations

import pytest

from draftwise.policies.auto.candidates import LENGTHS, match_length
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.state import MODEL_SHARE, USUAL_ANSWER, RequestState, rounds_left
from draftwise.policies.catalogue.auto import team


def test_a_model_is_told_apart_by_the_longest_match_of_any_lookup() -> None:
    place = RequestState([0] * 3)
    place.read_hints(
        {"ngram": 2.0, "suffix": 9.0, "model": 1.0},
        ("ngram", "model", "suffix"),
        (True, False, True),
        match_length,
    )
    short, long = match_length(2.0), match_length(9.0)
    assert short != long and place.contexts == [short, long, long] and place.matched
    place.read_hints({}, ("ngram", "model", "suffix"), (True, False, True), match_length)
    assert place.contexts == [0, 0, 0] and not place.matched


@pytest.mark.parametrize(
    ("answer", "position", "rounds"),
    [(100.0, 0, 50.0), (100.0, 90, 22.5), (0.0, 0, USUAL_ANSWER / 2), (8.0, 8, 4.0)],
)
def test_reading_is_paid_off_over_what_is_left(answer: float, position: int, rounds: float) -> None:
    """At two tokens a round; an answer that is longer than others is taken to go half as far again."""
    assert rounds_left(answer, position, 2.0) == rounds
    assert rounds_left(answer, position, 2.0, 0.5) == rounds / 2
    assert rounds_left(answer, position, 2.0, 0.0) == max(1.0, MODEL_SHARE[1] * rounds), (
        "never is not for good"
    )
    assert rounds_left(answer, position, 4.0) == rounds / 2
    assert rounds_left(answer, position, 2.0, room=6.0) == min(rounds, 3.0)
    assert rounds_left(answer, position, 2.0, room=1e6) == rounds


def test_a_model_that_a_lookup_leaves_few_rounds_must_pay_for_its_reading_in_these() -> None:
    """Only texts that it has read count: elsewhere its price kept it away."""
    policy = AutoPolicy(*team(["model", "ngram"], LENGTHS))
    place = RequestState([0, 0])
    for _ in range(200):
        policy._count(place, 1, 1)
    assert policy.shares == [1.0, 1.0]
    place.read = {0: 7}
    for turn in range(200):
        policy._count(place, 0 if turn % 4 == 0 else 1, 1)
    assert 0.2 < policy.shares[0] < 0.3 and policy.shares[1] == 1.0
    share = policy.shares[0]
    policy._count(place, -1, 8)
    assert policy.shares[0] == share, "one text of a batch may have read too little for a call"
    policy._count(place, 0, 8)
    assert policy.shares[0] > share


def test_a_cascade_counts_as_the_model_that_begins_its_drafts() -> None:
    policy = AutoPolicy(*team(["model", "ngram", "cascade:model>ngram?match=1"], LENGTHS))
    place = RequestState([0, 0, 0], {0: 7})
    for _ in range(600):
        policy._count(place, 2, 1)
    assert policy.shares[0] == 1.0 and policy.draft_cost(0).idle == 0.0
    assert policy.draft_cost(1).idle == 0.0  # without a match it could not draft
    place.contexts[1] = 1
    for _ in range(600):
        policy._count(place, 2, 1)
    assert policy.draft_cost(1).wait > policy.draft_cost(0).wait

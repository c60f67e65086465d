"""What `auto` knows of a place of a text before it drafts."""

from __future__ import annotations

import pytest

from draftwise.policies.auto.parts import match_length
from draftwise.policies.auto.place import Place, rounds_left


def test_a_model_is_told_apart_by_the_longest_match_of_any_lookup() -> None:
    place = Place([0] * 3, [0] * 3)
    place.look(
        {"ngram": 2.0, "suffix": 9.0, "model": 1.0},
        ("ngram", "model", "suffix"),
        (True, False, True),
        match_length,
    )
    short, long = match_length(2.0), match_length(9.0)
    assert short != long and place.contexts == [short, long, long] and place.matched
    place.look({}, ("ngram", "model", "suffix"), (True, False, True), match_length)
    assert place.contexts == [0, 0, 0] and not place.matched


@pytest.mark.parametrize(
    ("answer", "position", "rounds"), [(100.0, 0, 50.0), (100.0, 90, 22.5), (0.0, 0, 4.0)]
)
def test_reading_is_paid_off_over_what_is_left(answer: float, position: int, rounds: float) -> None:
    """At two tokens a round; an answer that is longer than others is taken to go half as far again."""
    assert rounds_left(answer, position) == rounds

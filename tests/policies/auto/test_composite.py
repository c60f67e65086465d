"""Composite drafts of `auto`: which names are relays, how a draft is split, and what its parts show."""

from __future__ import annotations

import pytest

from draftwise.core.arms import NEVER, Stop
from draftwise.core.drafts import Signals
from draftwise.policies.auto.composite import HEADS, Head, begun, best_split, kind, relays, rules, windows
from draftwise.policies.auto.skill import Calibration

LENGTHS = (1, 2, 4, 8, 16)


def said(*chances: float) -> list[Signals]:
    return [Signals(p, 0.0, 0.0, p) for p in chances]


def test_relays_are_known_by_their_names() -> None:
    names = [
        "ngram",
        "lm:a",
        "relay:lm:a>ngram?rest=true",
        "relay:lm:a>ngram?first=2",
        "relay:b>ngram?rest=1",
    ]
    assert relays(names) == {2: 1}
    assert relays(names[2:]) == {}  # its first part is not there


def test_the_first_part_is_as_long_as_pays_and_the_second_is_free() -> None:
    extra = [0.0] * 17
    sure, unsure = [0.9, 0.8, 0.7, 0.6], [0.9, 0.1, 0.05]
    for curve, price, tail, head in (
        (sure, 0.7, [0.9, 0.9, 0.9], 1),  # the lookup writes the same for nothing
        (sure, 0.01, [], 4),
        (unsure, 0.05, [0.5], 1),
    ):
        tails = {k: tail for k in range(len(HEADS))}
        (found,) = best_split(7, Head(curve, (0.1, price, extra)), tails.__getitem__, 1.0, LENGTHS)
        assert (found.drafter, found.head) == (7, head) and found.length > head
    assert found.gain == pytest.approx(0.9 + 0.45 - 0.15) and found.seconds == pytest.approx(0.15)
    assert best_split(7, Head([], (0.0, 0.0, extra)), lambda k: [0.9], 1.0, LENGTHS) == []
    assert best_split(7, Head(sure, (0.0, 0.0, extra[:2])), lambda k: [0.9], 1.0, LENGTHS) == []  # no room


def test_the_second_part_is_judged_by_how_long_the_first_is() -> None:
    asked: list[int] = []

    def tails(of: int) -> list[float]:
        asked.append(of)
        return [0.9] * (5 * (of == kind(3)))

    (found,) = best_split(0, Head([0.9] * 4, (0.0, 0.01, [0.0] * 17)), tails, 1.0, LENGTHS)
    assert found.head == 3 and asked == [0, 1, 2, 3]
    assert [kind(n) for n in (1, 2, 3, 4, 5, 7, 16)] == [0, 1, 2, 3, 4, 5, len(HEADS)]


def test_a_rule_or_the_end_of_its_share_ends_the_first_part() -> None:
    gain = Stop("gain", 0.3, Calibration())
    assert rules(gain, 0) == (gain,)
    for head in (1, 2, 4):
        assert begun(rules(NEVER, head), said(*[0.99] * 8)) == head
    assert begun(rules(gain, 4), said(0.9, 0.2, 0.9, 0.9, 0.9)) == 2
    assert begun(rules(NEVER, 4), said(0.9, 0.9)) == 2  # it had no more
    assert begun(rules(NEVER, 4), []) == 0


@pytest.mark.parametrize(
    ("head", "right", "asked", "first", "second"),
    [
        (2, 0, 8, (0.0,), ()),
        (2, 1, 8, (1.0, 0.0), ()),
        (2, 2, 8, (1.0, 1.0), (0.0,)),  # wrong, or nothing to add
        (2, 5, 8, (1.0, 1.0), (1.0, 1.0, 1.0, 0.0)),
        (2, 8, 8, (1.0, 1.0), (1.0,) * 6),
        (8, 8, 8, (1.0,) * 8, ()),
    ],
)
def test_the_second_part_is_tested_where_all_of_the_first_is_right(
    head: int, right: int, asked: int, first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    assert windows(head, right, asked) == (first, second)

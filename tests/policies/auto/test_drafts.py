"""The best draft of one drafter, and cascades: when a lookup takes over from a model."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from draftwise.core.arms import NEVER, HandOver, Stop
from draftwise.core.outcomes import Outcome, Window
from draftwise.policies.auto.chances import match_length
from draftwise.policies.auto.drafts import END, TAKEN, Candidate, Offer, cascade, cascades, rules
from draftwise.policies.auto.policy import AutoPolicy, Text
from draftwise.policies.auto.recorder import AutoRecorder, GradingState
from draftwise.policies.catalogue.auto import team

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
CURVE = [0.9, 0.7, 0.4, 0.1]
FLAT = [0.0] * 17


# -- one drafter -----------------------------------------------------------------------------------------


def test_a_token_is_drafted_if_its_chance_is_above_its_price() -> None:
    """Of 10 tokens a second, a token of 0.05 s costs half a token."""
    best = Offer(3, CURVE, 0.01, 0.05, FLAT).best(10.0, LENGTHS)
    assert (best.drafter, best.length) == (3, 2) and best.tokens == pytest.approx(1.6)
    assert best.gain == pytest.approx(1.6 - 0.1 - 1.0) and best.seconds == pytest.approx(0.11)


def test_tokens_behind_a_step_may_pay_for_all_of_it() -> None:
    """The second token costs more than it is worth, and the next six nothing more."""
    best = Offer(0, [0.95] * 8, 0.0, 0.0, [0.0, 0.0, *[0.15] * 7]).best(10.0, (1, 2, 4, 8))
    assert best.length == 8 and best.gain == pytest.approx(8 * 0.95 - 1.5)


@pytest.mark.parametrize("each", [0.0, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("lengths", [(1, 2, 3, 4), (2, 4), (3,)])
def test_no_other_length_gains_more(each: float, lengths: Sequence[int]) -> None:
    extra = [0.0, 0.0, 0.01, 0.03, 0.06]
    best = Offer(0, CURVE, 0.01, each, extra).best(10.0, lengths)
    gains = {n: sum(CURVE[:n]) - 10.0 * (0.01 + each * n + extra[n]) for n in lengths}
    assert best.length in lengths and best.gain == pytest.approx(max(gains.values()))
    assert gains[best.length] == pytest.approx(best.gain)


# -- cascades --------------------------------------------------------------------------------------------


def best(
    curve: Sequence[float],
    start: float,
    each: float,
    extra: Sequence[float],
    tails: dict[int, list[float]],
    *,
    chance: float = 0.5,
    lengths: Sequence[int] = LENGTHS,
) -> Candidate | None:
    return cascade(7, Offer(0, curve, start, each, extra), chance, lambda m: tails.get(m, []), 1.0, lengths)


def test_cascades_are_told_by_their_names() -> None:
    names = [
        "ngram",
        "lm:a",
        "cascade:lm:a>ngram?match=1",
        "cascade:lm:a>ngram?first=2",
        "cascade:b>ngram?match=2",
    ]
    assert cascades(names) == {2: 1}
    assert cascades(names[2:]) == {}, "its first part is not there"


def test_a_lookup_takes_over_where_it_is_worth_more_than_the_model() -> None:
    curve, tails = [0.8, 0.6, 0.4], {1: [0.2], 2: [0.9, 0.8, 0.7], 3: [0.1, 0.05]}
    draft, alone = best(curve, 0.1, 0.05, FLAT, tails), Offer(7, curve, 0.1, 0.05, FLAT).best(1.0, LENGTHS)
    assert draft is not None and (draft.drafter, draft.prefix_length) == (7, alone.length) == (7, 3)
    assert [one.match for one in draft.hand_overs] == [1, 2, 3, 4, 5, 9, 17]
    assert [one.inside for one in draft.hand_overs[:3]] == [False, True, False]
    assert draft.hand_overs[1].tokens >= 3 and draft.hand_overs[3] == HandOver(4, 0, False)
    assert draft.gain == pytest.approx(alone.gain + 0.5 * 0.8 * 0.2) and draft.length >= alone.length


@pytest.mark.parametrize("lengths", [LENGTHS, (4,), (16,)])
def test_no_cascade_is_longer_than_what_may_be_tried(lengths: Sequence[int]) -> None:
    """A pass grows step by step; `extra` ends where it does."""
    for most in range(max(1, lengths[0]), 17):
        allowed = [n for n in lengths if n <= most]
        tails = {match: [0.9] * 20 for match in range(1, 8)}
        draft = best([0.9] * 20, 0.0, 0.1, FLAT[: most + 1], tails, lengths=allowed)
        assert draft is None or draft.prefix_length <= draft.length <= most
        assert draft is not None or most == 1 or lengths != LENGTHS


@pytest.mark.parametrize(("right", "adds"), [(0.9, True), (0.3, False)])
def test_what_is_added_must_pay_for_a_longer_pass(right: float, adds: bool) -> None:
    """It is paid for whether the model's tokens are right or not."""
    draft = best([right], -1.0, 0.0, [0.3 * n for n in range(17)], {2: [0.9, 0.5]})
    assert (draft is not None) is adds
    assert draft is None or draft.hand_overs[0] == HandOver(2, 2)


@pytest.mark.parametrize(
    ("curve", "start", "tail"),
    [([0.3], 0.5, [0.9] * 9), ([0.9], 0.0, [])],
    ids=["the model does not pay", "the lookup has nothing"],
)
def test_there_is_no_cascade_where_one_part_is_worth_nothing(
    curve: list[float], start: float, tail: list[float]
) -> None:
    assert best(curve, start, 0.1, FLAT, {match: tail for match in range(1, 8)}) is None
    assert best([0.9], 0.0, 0.1, FLAT, {1: [0.9]}) is not None


def test_the_rarer_the_lookup_takes_over_the_less_a_cascade_gains() -> None:
    gains = [-inf]
    for chance in (0.1, 0.5, 0.9):
        draft = best([0.8], 0.0, 0.1, FLAT, {1: [0.9]}, chance=chance)
        assert draft is not None and draft.gain > gains[-1]
        gains.append(draft.gain)
    assert gains[3] - gains[1] == pytest.approx(0.8 * 0.8 * 0.9)


def test_the_end_of_its_share_ends_the_first_part() -> None:
    gain = Stop("gain", 0.3)
    assert rules(gain, 0) == (gain,) and rules(NEVER, 1) == (END,)
    assert rules(gain, 3) == (gain, gain, END)


def parts(outcome: Outcome) -> list[Window]:
    """What a cascade's draft after token 7 shows of its model, 0, and of its lookup."""
    policy = AutoPolicy(*team(["lm:a", "ngram", "cascade:lm:a>ngram?match=1"], LENGTHS))
    policy.texts[5] = Text([4, 4, 0])
    request = SimpleNamespace(id=5, tokens=[7, 1, 2, 3])
    seen: Any = SimpleNamespace(outcome=outcome, request=request, tokens=[1])
    windows = AutoRecorder(policy)._parts(2, seen, GradingState(0, at=1))
    assert policy.texts[5].read == ({0: 1} if outcome.prefix_length else {})
    return windows


@pytest.mark.parametrize(
    ("prefix_length", "right", "first", "second"),
    [
        (2, 0, (0.0,), ()),
        (2, 1, (1.0, 0.0), ()),
        (2, 2, (1.0, 1.0), (0.0,)),
        (2, 5, (1.0, 1.0), (1.0, 1.0, 1.0, 0.0)),
        (2, 8, (1.0, 1.0), (1.0,) * 6),
    ],
)
def test_the_second_part_is_tested_where_all_of_the_first_is_right(
    prefix_length: int, right: int, first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    windows = parts(Outcome(1, right, 8, prefix_length=prefix_length, match=3))
    assert windows[:2] == [Window(0, 4, first, 7), Window(2, TAKEN, (1.0,))]
    assert windows[2:] == ([Window(2, match_length(3.0), second)] if second else [])
    assert parts(Outcome(1, 8, 8, prefix_length=8))[1] == Window(2, TAKEN, (0.0,)), "no lookup took over"
    assert parts(Outcome(1, 0, 0)) == [], "nothing was drafted"
    ended = parts(Outcome(1, 1, 8, censored=True, prefix_length=2, match=3))
    assert ended[0].accepts == (1.0,), "the text ended with its first token: the second is not wrong"

"""What a drafter's tokens are worth to `auto`: chances by context and last token, and confidence."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from random import Random

import pytest

from draftwise.core.drafts import Signals
from draftwise.policies.auto.chances import (
    CLASSES,
    CONTEXTS,
    LEAN,
    LEAST,
    Acceptance,
    Calibration,
    match_length,
)
from draftwise.policies.auto.drafts import LEAST_MATCH

from .script import Prices, Stage


def test_the_context_of_a_hint_is_the_length_of_its_match() -> None:
    lengths = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 16.0, 17.0, 500.0)
    assert [match_length(n) for n in lengths] == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7]
    assert CONTEXTS == len(LEAST_MATCH) == 8
    assert [match_length(n) for n in LEAST_MATCH] == list(range(CONTEXTS))


# -- chances by context and place ------------------------------------------------------------------------


def test_a_drafter_that_nothing_is_known_of_is_right_half_of_the_time() -> None:
    new = Acceptance(8)
    for context in range(CONTEXTS):
        assert new.survival(context) == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.03125])
    assert new.mean == 0.5 and new.seen == 0.0


def test_chances_are_counts_that_lean_on_those_of_the_other_places() -> None:
    skill, half, lean = Acceptance(4, 2, memory=1.0), LEAN[0], LEAN[2]
    for _ in range(3):
        skill.learn(1, (1.0, 1.0, 0.0))
    # 9 tests, 6 of them passed, and one half of two more: without the place itself 4/8, 4/8, 7/8, 7/11
    first, third, fourth = (3 + lean * 4 / 8) / (3 + lean), lean * 7 / 8 / (3 + lean), 7 / 11
    expected = [first, first**2, first**2 * third, first**2 * third * fourth]
    assert half == 2.0 and skill.survival(1) == pytest.approx(expected)
    assert skill.survival(0) == pytest.approx([0.5, 0.25, 0.125, 0.0625]), "another context"


def test_tokens_weigh_what_those_before_them_leave() -> None:
    """Nothing after a wrong token counts, and half of what comes after one of a chance of one half."""
    skill = Acceptance(3, 2, memory=1.0)
    skill.learn(0, (1.0, 0.0, 1.0))
    skill.learn(1, (0.5, 0.5, 0.0))
    assert skill.tested == [[1.0, 1.0, 0.0], [1.0, 0.5, 0.25]]
    assert skill.accepted == [[1.0, 0.0, 0.0], [0.5, 0.25, 0.0]]
    assert skill.seen == 3.75 and skill.mean == pytest.approx((1.75 + 1) / (3.75 + 2))
    assert skill.confidence == pytest.approx(1.0 - sqrt((1.0 / skill.mean - 1.0) / (3.75 + 3.0)))


def test_what_drafts_do_not_reach_is_doubted_again() -> None:
    """Two tokens deep it was wrong ten times; long after, it counts as the drafter does elsewhere."""
    skill = Acceptance(4, 1)
    for _ in range(10):
        skill.learn(0, (1.0, 0.0))
    before = skill.survival(0)
    for _ in range(3000):
        skill.learn(0, (1.0,))
    after = skill.survival(0)
    assert before[1] / before[0] < 0.35 and after[1] / after[0] > 0.8 and skill.tested[0][1] < 0.01


def test_a_match_that_was_never_tested_is_worth_the_next_shorter_one() -> None:
    skill = Acceptance(4)
    for _ in range(200):
        skill.learn(2, (1.0, 1.0, 1.0, 1.0))
        skill.learn(1, (0.0,))
    first = [max(skill.survival(context), default=0.0) for context in range(CONTEXTS)]
    assert first[0] == 0.5 and first[1] < 0.1 and all(chance > 0.9 for chance in first[2:])
    for _ in range(60):
        skill.learn(5, (0.0,))
    assert max(skill.survival(5), default=0.0) < 0.1 < 0.9 < skill.survival(4)[0], "soon it counts for itself"


def test_chances_that_are_next_to_nothing_end_the_curve() -> None:
    skill = Acceptance(16, 1)
    for _ in range(100):
        skill.learn(0, (1.0, 0.0))
    curve = skill.survival(0)
    assert 1 <= len(curve) < 4 and min(curve) >= LEAST
    assert all(a >= b for a, b in pairwise(curve))


def test_a_curve_between_two_lessons_is_the_one_that_would_be_computed_again() -> None:
    skill, rng = Acceptance(4), Random(0)
    for _ in range(300):
        right = rng.randrange(4)
        skill.learn(rng.randrange(CONTEXTS), (1.0,) * right + (0.0,), rng.randrange(50))
        context = rng.randrange(CONTEXTS)
        before = skill.survival(context)
        skill.sums = []
        assert before == pytest.approx(skill.survival(context), abs=1e-12)
        for other in range(0, CONTEXTS, 2):
            skill.survival(other)


def test_of_other_texts_a_few_tests_remain() -> None:
    skill = Acceptance(4, 2)
    for _ in range(100):
        skill.learn(0, (1.0, 0.0))
    skill.learn(1, (1.0,))
    skill.last_expected[7], skill.last_accepted[7] = 80.0, 60.0
    before = skill.survival(0)[1]
    skill.restart()
    assert (skill.last_expected[7], skill.last_accepted[7]) == (LEAN[1], 0.75 * LEAN[1])
    assert skill.tested[0] == pytest.approx([LEAN[2], LEAN[2], 0.0, 0.0])
    assert skill.accepted[0] == pytest.approx([LEAN[2], 0.0, 0.0, 0.0])
    assert skill.tested[1] == [1.0, 0.0, 0.0, 0.0], "few are left as they are"
    assert before < skill.survival(0)[1] < 0.5, "the curve is computed again"


# -- the last token ------------------------------------------------------------------------------------------


def taught(easy: int, hard: int) -> Acceptance:
    """A drafter that is right after one token and wrong after another."""
    skill = Acceptance(4, 2)
    for _ in range(100):
        skill.learn(1, (1.0, 1.0, 0.0), easy)
        skill.learn(1, (0.0,), hard)
    return skill


def test_chances_are_higher_after_a_token_after_which_drafts_were_right() -> None:
    skill = taught(5, 70_000)
    usual, easy, hard = skill.survival(1), skill.after(5, 1), skill.after(70_000, 1)
    assert 0.4 < usual[0] < 0.6 and 0.9 < easy[0] <= 1.0 and hard[0] < 0.1
    assert easy[1] / easy[0] == pytest.approx(usual[1] / usual[0]), "later tokens follow their own text"
    assert skill.after(6, 1) == skill.after(-1, 1) == usual, "nothing was seen after these"
    assert skill.after(5 + CLASSES, 1) == easy
    skill.learn(1, (), 6)
    assert skill.after(6, 1) == skill.survival(1), "a draft of no tokens says nothing"


def test_an_expensive_model_drafts_after_the_tokens_after_which_it_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft costs half a pass and is right in a third of the places: it pays there alone."""
    stage = Stage(monkeypatch, {}, Prices(start=0.2e-3, token=4.8e-3), kinds=20)
    texts = stage._texts()
    stage.models = {"model": lambda text, at, rng: 0.9 if at and texts[text][at - 1] < 7 else 0.05}
    spent, rounds = stage.seconds("auto"), stage.run("auto")[2]
    later = rounds[len(rounds) // 2 :]
    drafts = [round for round in later if round.arm.length]
    # A third of the tokens: 0.18 to 0.20 of the rounds, by which texts these are.
    assert sum(round.accepted > 0 for round in drafts) > 0.75 * len(drafts) > 0.13 * len(later)
    assert spent < 0.96 * min(stage.seconds("none"), stage.seconds("static-1?drafter=model"))


# -- a drafter's own confidence -----------------------------------------------------------------------------


def score(calibration: Calibration, probability: float) -> float:
    return calibration.score(Signals(probability, 0.0, 0.0, probability))


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.5, 0.99])
def test_at_first_a_probability_is_believed(probability: float) -> None:
    assert score(Calibration(), probability) == pytest.approx(probability)


def test_calibration_learns_what_a_drafters_confidence_is_worth() -> None:
    """An overconfident drafter: at 0.9 it is right half of the time, at 0.5 a tenth."""
    rng, calibration = Random(0), Calibration()
    for _ in range(4000):
        probability, right = rng.choice(((0.9, 0.5), (0.5, 0.1)))
        calibration.learn(probability, float(rng.random() < right))
    assert calibration.seen == 4000
    for probability, right in ((0.9, 0.5), (0.5, 0.1)):
        assert score(calibration, probability) == pytest.approx(right, abs=0.08)


def test_a_lower_probability_is_never_worth_more() -> None:
    calibration = Calibration()
    for _ in range(2000):
        calibration.learn(0.95, 0.0)
        calibration.learn(0.05, 1.0)
    assert calibration.slope >= 0.0 and score(calibration, 0.05) <= score(calibration, 0.95)


@pytest.mark.parametrize("probability", [0.0, 1.0, float("nan")])
def test_no_probability_is_taken_as_certain(probability: float) -> None:
    calibration = Calibration()
    calibration.learn(probability, float(probability < 0.5))
    assert 0.0 < score(calibration, probability) < 1.0

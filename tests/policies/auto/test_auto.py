"""`auto`: what it knows of costs and skills, and how it does in worlds whose seconds are counted."""

from __future__ import annotations

from itertools import pairwise
from math import isnan
from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Arm, Context, Decision
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome, RoundCost, Window
from draftwise.errors import UserError
from draftwise.policies.auto.acceptance import LATER, AcceptanceEstimate, Calibration
from draftwise.policies.auto.candidates import CONTEXTS, LENGTHS, Candidate
from draftwise.policies.auto.costs import DraftCost, Line, PassCost, Throughput, nearest, size_class
from draftwise.policies.auto.grading import DraftCall, Observed, PendingDraft
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.state import FIRST_PAUSE, JUDGED_ROUNDS, PAUSE_GROWTH, PROBE_EVERY, Guard
from draftwise.policies.catalogue import default, method
from draftwise.state.numbers import dump, load

# -- costs -------------------------------------------------------------------------------------------


def test_the_price_of_a_pass_is_monotone_and_goes_on_beyond_what_was_seen() -> None:
    cost = PassCost()
    assert cost(5) == 0.0 and not cost.known
    cost.add(1, 0.010)
    assert cost(1) == cost(9) == 0.010  # nothing else is known: more tokens are free until tried
    for _ in range(20):
        for tokens, seconds in ((1, 0.010), (3, 0.009), (9, 0.014), (17, 0.022)):
            cost.add(tokens, seconds)
    assert cost(1) == cost(2) == cost(3) == pytest.approx(0.0095, rel=0.03)  # pooled
    assert cost(13) == pytest.approx(0.018, rel=0.02)  # halfway between 9 and 17
    assert cost(33) > cost(17)
    extra = cost.table(1, 16)
    assert extra[0] == 0.0 and extra[16] == pytest.approx(cost(17) - cost(1))
    assert all(a <= b for a, b in pairwise(extra))


def test_a_step_begins_after_the_largest_pass_that_was_as_brief_as_smaller_ones() -> None:
    """Passes of 49 to 64 tokens are one range: by its mean size alone 64 would look expensive."""
    step, line, stair = PassCost(), PassCost(), PassCost()
    for tokens in (8, 40, 64, 56, 56, 104) * 20:
        step.add(tokens, 0.010 * max(1.0, tokens / 64))
        line.add(tokens, 0.010 + 0.001 * tokens)
        stair.add(tokens, 0.010 if tokens <= 48 else 0.020)
    assert step(60) == step(64) == pytest.approx(0.010) and step(80) > 0.0115
    assert step.table(57, 9)[7] == pytest.approx(0.0) and step.table(57, 9)[9] > 0.0003
    for tokens in (60, 64, 80):
        assert line(tokens) == pytest.approx(0.010 + 0.001 * tokens, rel=0.01)
    assert stair(64) == stair(104) == pytest.approx(0.020), "it does not rise beyond what larger ones take"
    for cost in (step, line, stair):
        assert all(a <= b for a, b in pairwise(cost.table(1, 150)))


def test_a_hiccup_moves_a_price_little_and_lasting_change_moves_it_soon() -> None:
    cost = PassCost()
    for _ in range(50):
        cost.add(1, 0.010)
    cost.add(1, 3.0)
    assert cost(1) < 0.0105
    for _ in range(200):
        cost.add(1, 0.020)
    assert cost(1) == pytest.approx(0.020, rel=0.05)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, 0.0])
def test_readings_that_are_none_are_left_out(wrong: float) -> None:
    cost, draft = PassCost(), DraftCost()
    cost.add(1, wrong)
    assert not cost.known
    draft.drafted(3, 0, wrong)
    assert all(map(isnan, draft.price(1))) or draft.price(1) == (0.0, 0.0)


def test_a_draft_has_a_start_and_a_price_for_each_token() -> None:
    cost = DraftCost()
    assert all(map(isnan, cost.price(1)))
    cost.drafted(2, 1, 7.0)
    assert all(map(isnan, cost.price(1))) and cost.tried == 1  # the first has what is done once
    cost.drafted(2, 1, 0.003)
    assert cost.price(1) == pytest.approx((0.0, 0.0015))  # one size: by the token
    for _ in range(40):
        for tokens in (1, 2, 4, 8):
            cost.drafted(tokens, 1, 0.001 + 0.0005 * tokens)
    assert cost.price(1) == pytest.approx((0.001, 0.0005), rel=0.05)
    cost.drafted(4, 1, 3.0)
    assert cost.price(1) == pytest.approx((0.001, 0.0005), rel=0.15)  # a hiccup


def test_a_call_for_many_is_paid_by_all_of_them() -> None:
    cost = DraftCost()
    for _ in range(40):
        for tokens in (2, 6):
            cost.drafted(tokens, 8, 0.001 + 0.0008 * tokens, mates=8, batch=8)
    assert cost.price(8) == pytest.approx((0.001 / 8, 0.0001), rel=0.1)
    assert cost.price(1) == cost.price(8) == cost.price(32)  # the nearest that is known


def test_a_first_pass_of_its_size_that_is_too_dear_is_left_out_once() -> None:
    cost = PassCost()
    for _ in range(20):
        cost.add(1, 0.010)
    cost.add(9, 0.080)  # kernels are prepared
    assert cost(9) == pytest.approx(0.010)
    cost.add(9, 0.080)  # no, it costs that
    assert cost(9) == pytest.approx(0.080)


def test_sizes_that_were_seen_long_ago_are_taken_to_cost_less() -> None:
    cost = PassCost()
    for tokens, seconds in ((1, 0.010), (3, 0.012), (9, 0.080)):
        for _ in range(4):
            cost.add(tokens, seconds)
    assert cost(9) == pytest.approx(0.080, rel=0.1)
    for _ in range(1000):
        cost.add(1, 0.010)
    assert 0.010 < cost(3) < 0.012 and cost(3) < cost(9) < 0.030
    assert cost.usual(9) == pytest.approx(0.080)  # what a pass took is not what it may take
    cost.add(9, 0.080)
    assert cost(9) > 0.070


def test_a_first_pass_of_its_size_takes_no_longer_than_its_tokens_alone() -> None:
    cost = PassCost()
    cost.add(1, 0.010)
    for _ in range(2):  # the first is left out
        cost.add(4, 9.0)  # the machine slept
    assert cost(4) == pytest.approx(0.040)


def test_the_first_pass_over_a_text_is_not_timed() -> None:
    cost = DraftCost()
    cost.read(150, 7e-3)  # prepares memory and kernels
    assert (cost.reading.each, cost.reading.readings) == (0.0, 0.0)
    cost.read(100, 1e-3)
    assert cost.reading.each == pytest.approx(1e-5)
    many = DraftCost()
    many.read(100, 1e-3, batch=8)
    assert many.reading.each == pytest.approx(1e-5), "a batch reads more often"


def test_what_a_draft_costs_is_forgotten_after_many_rounds_without_a_call() -> None:
    cost = DraftCost()
    for _ in range(3):
        cost.drafted(1, 0, 0.5)
    assert cost.tried == 3
    waits = []
    for _ in range(4):
        rounds = 0
        while cost.tried == 3:
            cost.used(False)
            rounds += 1
        waits.append(rounds)
        for _ in range(2):
            cost.drafted(1, 0, 0.5)
    assert waits == [256, 1024, 4096, 8192]
    cost.used(True)
    assert cost.wait == 256.0


def test_what_a_draft_costs_is_not_taken_from_calls_that_read_a_long_text_first() -> None:
    """Where it was forgotten, too: such a call may come in each text."""
    cost = DraftCost()
    for calls in (3, 1):
        for _ in range(calls):
            cost.drafted(1, 1000, 0.5)
            assert isnan(cost.price(1)[0]) and cost.tried == 1, "unknown, and tried again"
        cost.drafted(1, 0, 0.001)
        assert sum(cost.price(1)) == pytest.approx(0.001, rel=0.2)
        cost.drafted(1, 0, 0.001)
        for _ in range(256 if calls == 3 else 1024):
            cost.used(False)
    for _ in range(3):
        cost.drafted(1, 1000, 0.5)
    assert sum(cost.price(1)) > 0.1, "three in a row: this is how it drafts"


def test_a_new_size_between_known_ones_does_not_change_the_price_of_a_token_at_once() -> None:
    """It was not extrapolated: all requests of a batch would draft as far as tokens look free."""
    cost = PassCost()
    for tokens in (8, 16, 32, 64, 104):
        for _ in range(8):
            cost.add(tokens, 10e-3 * max(1.0, tokens / 64), requests=8)
    before = list(cost.extra)
    assert before[8] > 1e-3
    for _ in range(8):
        cost.add(48, 10e-3, requests=8)
    assert cost.extra[8] > 0.7 * before[8]
    for _ in range(8):
        cost.add(136, 10e-3 * 136 / 64, requests=8)
    assert cost.extra[8] == pytest.approx(cost(127.0 + 8.0) - cost(127.0), rel=0.1), "this one was"


def test_a_price_of_a_batch_that_nobody_drafts_at_is_made_anew() -> None:
    cost = PassCost()
    for _ in range(40):
        cost.add(8, 0.010, requests=8)
        cost.add(24, 0.010, requests=8)
    cost.extra = [0.0] + [9.0] * 16  # of a busy hour
    for _ in range(500 * 8):
        cost.add(8, 0.010, requests=8)
    assert cost.extra[1] == 9.0
    for _ in range(20 * 8):
        cost.add(8, 0.010, requests=8)
    assert cost.extra[1] < 0.001


def test_a_tree_costs_its_nodes_and_a_chain_its_tokens() -> None:
    cost = DraftCost()
    for _ in range(50):
        cost.drafted(4, 0, 4e-3)
        cost.shaped(3, 4)  # a chain that stopped early
    each = cost.price(1)[1]
    assert cost.width == 1.0
    cost.shaped(24, 4)
    assert cost.width == 6.0 and cost.price(1)[1] == pytest.approx(6 * each)
    cost.shaped(8, 4)
    assert 2.0 < cost.width < 6.0


def test_neither_the_start_nor_the_token_is_ever_less_than_free() -> None:
    falling, steep = Line(), Line()
    for _ in range(40):
        for tokens in (1, 8):
            falling.add(tokens, 0.01 - 0.001 * tokens)
            steep.add(tokens, max(0.0, 0.01 * tokens - 0.02))
    assert falling.each == 0.0 < falling.start
    assert steep.start == 0.0 < steep.each


def test_a_draft_after_a_long_absence_teaches_the_price_of_reading() -> None:
    cost = DraftCost()
    for _ in range(5):
        cost.drafted(4, 2, 0.004)
    before = cost.price(1)
    assert before == pytest.approx((0.0, 0.001))
    cost.drafted(4, 500, 0.004 + 0.020)
    assert cost.price(1) == before and cost.reading.each == pytest.approx(0.020 / 500)


def test_a_pass_that_grades_has_a_start_that_is_not_the_price_of_reading() -> None:
    """24 tokens take 1.5 ms, 300 take 7: reading is 20 microseconds a token, not 60."""
    cost = DraftCost()
    for _ in range(30):
        for tokens in (24, 30, 300):
            cost.read(tokens, 0.001 + 0.00002 * tokens)
    assert cost.reading.each == pytest.approx(0.00002, rel=0.1)


def test_a_busy_spell_does_not_make_what_it_met_look_dear() -> None:
    """Passes of one token are timed while the machine is half as fast, those of nine before it."""
    made = policy("a")

    def passed(tokens: int, seconds: float) -> None:
        spent = RoundCost(0.0, seconds, tokens)
        made.learn(Feedback(0, Decision(0), (Outcome(0, 0, 0, seconds, cost=spent),)))

    for _ in range(50):
        passed(1, 0.010)
        passed(9, 0.012)
    for _ in range(300):
        passed(1, 0.020)
    assert made.passes[0](9) / made.passes[0](1) == pytest.approx(1.2, rel=0.1)


def test_an_unknown_size_of_batch_takes_the_nearest_known() -> None:
    costs = [PassCost() for _ in range(6)]
    costs[3].add(8, 0.02)
    assert nearest(costs, size_class(1)) is costs[3] and nearest(costs, size_class(100)) is costs[3]


# -- skills ------------------------------------------------------------------------------------------


def test_chances_are_counts_that_lean_on_the_mean_of_the_others() -> None:
    skill = AcceptanceEstimate(2, 4, memory=1.0, lean=4.0)
    assert skill.curve(0, 0) == pytest.approx([0.5, 0.25, 0.125, 0.0625])
    for _ in range(3):
        skill.learn(7, 0, (1.0, 1.0, 0.0))
    skill.close(7)
    # 9 tests, 6 accepted, and one of two more: the others' mean is 4/8 for the first two, then 7/8, 7/11
    first, third, fourth = (3 + 4 * 4 / 8) / 7, 4 * 7 / 8 / 7, 7 / 11
    assert skill.curve(0, 0) == pytest.approx([first, first**2, first**2 * third, first**2 * third * fourth])
    assert skill.curve(0, 1) == pytest.approx([0.5, 0.25, 0.125, 0.0625])


def test_a_few_failures_are_counted_once() -> None:
    """They are no part of the mean that the chance leans on, so that three do not weigh as much as ten."""
    skill, half = AcceptanceEstimate(1, 4, memory=1.0), 0.5
    for _ in range(3):
        skill.learn(0, 0, (0.0,))
    skill.close(0)
    assert skill.curve(1, 0)[0] == pytest.approx(skill.lean * half / (3 + skill.lean))


def test_a_curve_is_kept_until_its_text_shows_something_or_others_have_shown_much() -> None:
    skill = AcceptanceEstimate(2, 4)
    before = skill.survival(0, 1)
    skill.learn(0, 0, (1.0, 1.0, 1.0, 1.0))
    assert skill.survival(0, 1) is before, "of another context"
    seen = skill.survival(0, 0)
    skill.learn(0, 0, (1.0,))
    assert skill.survival(0, 0) == skill.curve(0, 0) != seen, "its own text tells of this one"
    for _ in range(LATER - 3):
        skill.learn(7, 1, (1.0, 1.0, 1.0, 1.0))
    assert skill.survival(0, 1) == before != skill.curve(0, 1)
    skill.learn(7, 1, (1.0, 1.0, 1.0, 1.0))
    assert skill.survival(0, 1) == skill.curve(0, 1) != before
    skill.close(7)
    skill.restart()
    assert skill.survival(0, 1) == skill.curve(0, 1), "what a file brings has been weakened"


def test_a_rate_is_that_of_its_kind_of_place_and_leans_on_all() -> None:
    pace = Throughput()
    assert pace.rate(True, 0.01) == 0.0
    for _ in range(100):
        pace.add(False, 1, 0.01)
        pace.add(True, 10, 0.01)
    assert 100 < pace.rate(False, 0.01) < 160 < 940 < pace.rate(True, 0.01) < 1000
    assert pace.rate(False, 0.0) == pace.rate(True, 0.0) == pytest.approx(550, rel=0.01)


def test_what_a_call_reads_of_a_text_is_no_part_of_the_rate_unless_it_reads_it_in_every_round() -> None:
    for pending, rate in ((1000, 100.0), (5, 100.0 / 11)):
        made = policy("a")
        made.passes[0].add(1, 0.01)
        cost = made.draft_cost(0)
        for _ in range(3):
            cost.drafted(2, 0, 0.001)
        cost.read(1, 0.1 / pending)
        cost.read(pending, 0.1)
        call = DraftCall(0, 1, longest=2, pending=pending, seconds=0.1, drafts=[(2, 2)])
        made._observe(0, Observed(1, {}, calls=[call]))
        spent = RoundCost(0.1, 0.01, 1)
        made._time(0, Outcome(0, 0, 0, 0.11, cost=spent))
        assert made.pace.rate(False, 0.0) == pytest.approx(rate, rel=0.1)
        assert (made.pace.writing < 0.2) is (pending == 1000)
        made._observe(0, Observed(1, {}, calls=[]))
        assert made.reading == 0.0


def test_all_requests_of_a_batch_may_share_a_call() -> None:
    """A drafter may pay if its call takes half a pass, and not if it takes more than one, in any batch."""
    for seconds, pays in ((5e-3, True), (12e-3, False)):
        made = policy("a")
        for batch in (1, 32):
            made.passes[size_class(batch)].add(batch, 0.01)
            for _ in range(3):
                made.draft_cost(0).drafted(1, 0, seconds, batch=batch)
        assert [made.may_pay(0, batch) for batch in (1, 32)] == [pays, pays]


def test_the_share_of_reading_fades_slowly() -> None:
    pace = Throughput()
    assert pace.writing == 1.0
    pace.read(0.5)
    assert pace.writing == 1.0, "of no round"
    for _ in range(50):
        pace.add(False, 1, 0.01)
    assert 0.5 < pace.writing < 0.7 and pace.rate(False, 0.01) == pytest.approx(100)
    for _ in range(500):
        pace.add(False, 1, 0.01)
    assert pace.writing > 0.99


def test_a_text_of_its_own_kind_shows_within_a_few_drafts_and_is_forgotten_with_it() -> None:
    skill = AcceptanceEstimate(1, 4)
    for _ in range(200):
        skill.learn(1, 0, (1.0, 1.0, 1.0, 1.0))
    for _ in range(20):
        skill.learn(2, 0, (0.0,))
    assert skill.survival(2, 0)[0] < 0.5 < 0.9 < skill.survival(1, 0)[0]
    skill.close(2)
    assert skill.survival(2, 0)[0] > 0.85 and set(skill.own) == {1}


def test_chances_below_one_weigh_what_comes_after_them() -> None:
    skill = AcceptanceEstimate(1, 3, memory=1.0)
    skill.learn(0, 0, (0.5, 0.5, 0.0))
    assert skill.tested[0] == [1.0, 0.5, 0.25] and skill.accepted[0] == [0.5, 0.25, 0.0]


def test_what_drafts_do_not_reach_is_doubted_again() -> None:
    """Two tokens deep it was wrong once; long after, it counts as the drafter does elsewhere."""
    skill = AcceptanceEstimate(1, 4)
    for _ in range(10):
        skill.learn(0, 0, (1.0, 0.0))
    skill.close(0)
    before = skill.survival(1, 0)
    for _ in range(3000):
        skill.learn(2, 0, (1.0,))
    skill.close(2)
    after = skill.survival(1, 0)
    assert before[1] / before[0] < 0.3 and after[1] / after[0] > 0.8 and skill.tested[0][1] < 0.01


def test_calibration_finds_what_a_drafters_confidence_is_worth() -> None:
    """An overconfident drafter: it says 0.9 and is right half of the time, 0.5 and a tenth."""
    rng, calibration = Random(0), Calibration()
    for _ in range(4000):
        said, right = rng.choice(((0.9, 0.5), (0.5, 0.1)))
        calibration.learn(said, float(rng.random() < right))
    for said, right in ((0.9, 0.5), (0.5, 0.1)):
        assert calibration.score(Signals(said, 0.0, 0.0, said)) == pytest.approx(right, abs=0.08)


# -- what is compared with the text -----------------------------------------------------------------------


def test_a_held_draft_is_settled_where_it_is_wrong_or_has_no_more_to_offer() -> None:
    held = PendingDraft(0, 2, (5, 6, 7), 8)
    assert held.follow([5]) is None
    assert held.follow([6, 9]) == Window(0, 2, (1.0, 1.0, 0.0))
    assert PendingDraft(0, 2, (5, 6), 8).follow([5, 6, 7]) == Window(
        0, 2, (1.0, 1.0, 0.0)
    )  # it offered two of eight
    assert PendingDraft(0, 2, (5, 6), 2).follow([5, 6, 7]) == Window(0, 2, (1.0, 1.0))
    assert PendingDraft(0, 2, (), 8).follow([5]) == Window(0, 2, (0.0,))


# -- choosing ------------------------------------------------------------------------------------------


def policy(*names: str, looks_up: bool = True) -> AutoPolicy:
    arms = (Arm("none", 0), *(Arm(name, length) for name in names for length in LENGTHS))
    return AutoPolicy(arms, names, (looks_up,) * len(names))


def taught(rate: float, chance: float, *, token: float = 0.0, extra: float = 0.0) -> AutoPolicy:
    """A policy that knows one lookup's chance, its price, and that of a longer pass."""
    made = policy("a")
    made.pace = Throughput(tokens=[rate, rate], seconds=[1.0, 1.0])
    made.skills[0].tested = [[1000.0] * LENGTHS[-1] for _ in range(CONTEXTS)]
    made.skills[0].accepted = [[1000.0 * chance] * LENGTHS[-1] for _ in range(CONTEXTS)]
    for _ in range(100):
        made.draft_cost(0).drafted(1, 0, token)
        for tokens in (1, 17):
            made.passes[0].add(tokens, 0.01 + extra * (tokens - 1))
    return made


@pytest.mark.parametrize(
    ("chance", "token", "extra", "length"),
    [
        (0.9, 0.0, 0.0, 16),  # nothing costs anything
        (0.5, 0.0, 0.0005, 4),  # at 100 tokens/s a token costs 0.05: 0.5^4 pays for itself, 0.5^5 does not
        (0.5, 0.0005, 0.0005, 3),
        (0.3, 0.0, 0.004, 0),  # 0.3 tokens for 0.4
    ],
)
def test_a_draft_goes_as_far_as_its_last_token_pays(
    chance: float, token: float, extra: float, length: int
) -> None:
    made = taught(100.0, chance, token=token, extra=extra)
    decision = made.choose(Context(hints={"a": 2.0}), Random(0))
    assert made.arms[decision.arm].length == length


def test_a_lookup_without_a_match_and_a_model_that_nothing_is_known_of_do_not_play() -> None:
    made = taught(100.0, 0.9)
    assert made.arms[made.choose(Context(hints={"a": 0.0}), Random(0)).arm].length == 0
    assert made.arms[made.choose(Context(hints={"a": 3.0}), Random(0)).arm].length > 0
    gone = Context(hints={"a": 3.0}, unavailable=frozenset({"a"}))
    assert made.arms[made.choose(gone, Random(0)).arm].length == 0
    unknown = policy("m", looks_up=False)
    assert unknown.arms[unknown.choose(Context(hints={"m": 1.0}), Random(0)).arm].length == 0


def test_what_was_learnt_is_kept_as_numbers() -> None:
    made, fresh = taught(100.0, 0.7, token=0.0003, extra=0.0002), policy("a")
    made.choose(Context(hints={"a": 2.0}), Random(0))
    outcome = Outcome(3, 1, 2, 0.02, signals=(Signals(0.9, 0, 0, 0.9),) * 2, cost=RoundCost(0.001, 0.019, 3))
    made.learn(Feedback(0, made.choose(Context(hints={"a": 2.0}), Random(0)), (outcome,)))
    made.close(0)
    load(fresh, dump(made))
    for match in (1.0, 2.0, 5.0, 20.0):
        here = Context(request=5, hints={"a": match})
        assert fresh.choose(here, Random(0)) == made.choose(here, Random(0))


def test_a_longest_draft_can_be_named() -> None:
    made: Any = method("auto?length=5", ["a", "b"]).policy
    assert made.lengths == (1, 2, 3, 4, 5) and max(arm.length for arm in made.arms) == 5
    assert isinstance(usual := method("auto", ["a"]).policy, AutoPolicy) and usual.lengths == LENGTHS
    for wrong in (0, 17):
        with pytest.raises(UserError, match=rf"auto\?length={wrong}: give 1 to 16"):
            method(f"auto?length={wrong}", ["a"])


def test_it_is_the_default_wherever_there_is_a_drafter() -> None:
    assert default(["ngram"]) == "auto" and default(["none"]) == default([]) == "none"
    with pytest.raises(UserError, match="share=1"):
        method("auto?share=1", ["ngram"])


def test_the_guard_calls_speculation_off_where_it_does_not_pay_and_tries_again() -> None:
    guard = Guard()
    for _ in range(int(JUDGED_ROUNDS)):
        assert guard.is_enabled()
        guard.add(1.1, 1.0)
    pauses = [guard.is_enabled() for _ in range(FIRST_PAUSE + 1)]
    assert pauses == [False] * FIRST_PAUSE + [True]
    for _ in range(int(JUDGED_ROUNDS)):
        guard.add(1.1, 1.0)
    assert guard.pause == PAUSE_GROWTH * FIRST_PAUSE
    guard.pause = 0
    for _ in range(int(6 * JUDGED_ROUNDS)):
        guard.add(0.9, 1.0)
        assert guard.is_enabled()
    assert guard.penalty == FIRST_PAUSE


def paused() -> Guard:
    """After a trial that failed."""
    guard = Guard()
    for _ in range(int(JUDGED_ROUNDS)):
        guard.add(1.1, 1.0)
    assert not guard.is_enabled()
    return guard


def test_a_pause_does_not_hold_what_is_expected_to_gain_much() -> None:
    guard = paused()
    assert not guard.is_enabled(gain=0.9) and guard.is_enabled(gain=1.1)
    guard.add(1.4, 1.0)
    assert not guard.is_enabled(gain=1.9) and guard.is_enabled(gain=2.1), "the first one failed"
    for _ in range(4):
        guard.add(1.6, 1.0)
    assert not guard.is_enabled(gain=16.0) and guard.pause > FIRST_PAUSE - 16
    guard = paused()
    for k in range(4):
        guard.add(1.6, 9.0)
        assert guard.is_enabled(gain=0.6 / 2**k) and guard.is_enabled() == (k == 3), "success ends the pause"
    guard = Guard()
    assert not all(guard.is_enabled(load=2.0, batch=4) for _ in range(300))
    assert guard.pause > 0.0 and not guard.is_enabled(load=2.0, batch=4, gain=15.0), (
        "a look at plain decoding"
    )


def test_in_a_batch_the_guard_counts_passes() -> None:
    guard = Guard()
    for reports in range(int(JUDGED_ROUNDS) * 4):
        assert guard.is_enabled(batch=4), f"after {reports} of 4 requests"
        guard.add(1.1, 1.0, batch=4)
    for _ in range(FIRST_PAUSE * 4):
        assert not guard.is_enabled(batch=4)
    assert guard.is_enabled(batch=4)


@pytest.mark.parametrize("batch", [1, 4])
def test_the_guard_does_not_judge_rounds_that_measure_what_a_draft_costs(batch: int) -> None:
    """The first calls prepare memory and read the prompts."""
    made = taught(100.0, 0.9)
    contexts = [Context(request=k, hints={"a": 2.0}, batch_size=batch) for k in range(batch)]

    def play() -> None:
        if batch > 1:
            assert not made.rests(batch)
            made.plan(contexts)
        decisions = [made.choose(one, Random(0)) for one in contexts]
        assert all(made.arms[decision.arm].length for decision in decisions)
        spent = RoundCost(1.0, 0.01, 2 * batch, requests=batch)
        for k, decision in enumerate(decisions):
            made.learn(Feedback(k, decision, (Outcome(decision.arm, 1, 1, 1.01, cost=spent),)))

    made.draft_cost(0).calls = DraftCost().calls
    for _ in range(3):
        play()
        assert made.guard.rounds == 0.0
    for _ in range(3):
        made.draft_cost(0).drafted(4, 0, 1e-3, batch=batch)
    play()
    assert made.guard.rounds == pytest.approx(1.0)


def test_one_request_that_measures_a_drafter_makes_the_round_of_all_a_measurement() -> None:
    made = taught(100.0, 0.9)
    contexts = [Context(request=k, hints={"a": 2.0}, batch_size=2) for k in range(2)]
    for first in (True, False):
        assert not made.rests(2)
        made.planned = {k: [Candidate(0, 1, 1.0, 0.0, 1.0, trial=first and k == 0)] for k in range(2)}
        for one in contexts:
            made.choose(one, Random(0))
        assert made.measuring == first


def test_a_look_at_plain_decoding_takes_a_batch_two_passes_at_most() -> None:
    """It begins in the middle of one: a whole pass without drafts shows what plain decoding takes."""
    guard, batch = Guard(), 4
    said = [guard.is_enabled(load=2.0, batch=batch) for _ in range(PROBE_EVERY * batch + 20)]
    assert said.count(False) == 2 * batch - 1 and all(said[: PROBE_EVERY * batch])
    assert all(said[-10:])


def test_in_a_batch_the_price_of_a_token_is_that_with_what_the_others_draft() -> None:
    """A pass of 64 tokens costs as much as one of 32, and each token more 0.1 ms."""
    cost = PassCost()
    for size in (32, 48, 64, 96, 128) * 30:
        cost.add(size, 0.010 + 0.0001 * max(0, size - 64), requests=32)
    for size, price in ((48, 0.0), (96, 0.0008)):
        for _ in range(600 * 32):
            cost.add(size, 0.010 + 0.0001 * max(0, size - 64), requests=32)
        assert cost.extra[8] == pytest.approx(price, abs=5e-5)


def test_drafts_grow_step_by_step_while_longer_passes_are_unknown() -> None:
    cost = PassCost()
    assert cost.room(1) == 1
    for tokens, room in ((1, 1), (2, 3), (4, 7), (8, 15), (16, 31)):
        cost.add(tokens, 0.01)
        assert cost.room(1) == room
    assert cost.room(32) == 1


@pytest.mark.parametrize("word", ["compiled", "graph"])
def test_each_kind_of_pass_has_costs_of_its_own(word: str) -> None:
    """After a switch nothing is believed of eager costs; after the way back nothing is forgotten.

    What follows a colon is a width, and no kind.
    """
    made = policy("a", looks_up=False)

    def play(seconds: float, kind: str, rounds: int = 40) -> None:
        for tokens in (1, 5, 9) * rounds:
            each = seconds * (1.0 + 0.05 * tokens)
            cost = RoundCost(0.0, each, tokens, 1, f"{kind}:{tokens}" if kind == "graph" else kind, kind)
            made.learn(Feedback(0, Decision(0), (Outcome(0, 0, 0, each, cost=cost),)))

    play(0.02, "eager")
    eager, pace, guard = made.passes[0](5), made.pace, made.guard
    assert made.pass_cost(1) is made.pass_cost(8) is made.passes[0], "the only size of batch that is known"
    play(0.008, word)
    assert made.pass_cost(1) is made.passes[0], "that of the other kind"
    assert made.passes[0](5) == pytest.approx(0.010, rel=0.1)
    assert made.load.factor == pytest.approx(1.0, rel=0.1)
    assert made.pace is not pace and made.guard is not guard
    play(0.02, "eager", rounds=1)
    assert made.passes[0](5) == pytest.approx(eager, rel=0.1)
    assert made.pace is pace and made.guard is guard


# -- what it tells ---------------------------------------------------------------------------------------


def test_the_value_of_an_arm_is_its_gain_at_the_places_where_it_was_tested() -> None:
    made = taught(100.0, 0.5, token=0.0005, extra=0.0005)
    made.load.factor = 1.5
    told = made.values()
    assert told.values[0] == told.seconds[0] == 0.0
    for arm, value, seconds in zip(made.arms[1:], told.values[1:], told.seconds[1:], strict=True):
        accepted = sum(0.5**k for k in range(1, min(arm.length, 5) + 1))  # of what is likely enough to count
        assert seconds == pytest.approx(0.001 * arm.length, rel=0.1)
        assert value == pytest.approx(accepted - 100.0 * (seconds or 0.0), abs=0.03)
    best = max(range(len(made.arms)), key=lambda i: told.values[i] or 0.0)
    assert best == made.choose(Context(hints={"a": 2.0}), Random(0)).arm
    assert told.plain == pytest.approx(0.015, rel=0.01)
    assert told.price == {"without a match": pytest.approx(100.0), "with a match": pytest.approx(100.0)}
    assert set(told.matches) == {"a"} and len(told.matches["a"]) == CONTEXTS
    assert told.matches["a"]["5 to 8"] == pytest.approx((16000.0, 8000.0))


def test_nothing_known_is_nothing_told() -> None:
    told = policy("a", "m").values()
    assert told.values == (0.0, *[None] * (2 * len(LENGTHS))) and told.seconds == told.values
    assert (told.price, told.plain, told.matches) == ({}, None, {"a": {}, "m": {}})


@pytest.mark.parametrize(("seconds", "timed"), [(2e-3, 4), (20e-3, 16)])
def test_of_brief_rounds_whose_costs_are_known_one_in_four_is_timed(seconds: float, timed: int) -> None:
    made = policy("a", "m")
    for _ in range(300):
        made.pass_costs[0].add(1, seconds)
        made.draft_costs[0].drafted(2, 0, 1e-4)
        made.draft_costs[1].drafted(2, 0, 1e-4)
    found, calibration = 0, made.calibrations[1]
    made.looks_up = (True, False)
    played = made.index[1, 1]
    outcome = Outcome(played, 1, 1, signals=(Signals(0.9, 0.1, 0.3, 0.9),))
    for _ in range(16):
        made.choose(Context(hints={"a": 4.0}), Random(0))
        found += made.timed
        made.learn(Feedback(0, Decision(played), (outcome,)))
    assert found == timed == calibration.seen  # stop rules are calibrated in the same rounds

"""What passes, calls and reading cost `auto` in seconds, and what a second is worth."""

from __future__ import annotations

from itertools import pairwise
from math import isnan

import pytest

from draftwise.policies.auto.prices import (
    WAIT,
    WINDOW,
    DraftPrice,
    Line,
    PassPrice,
    Rate,
    size_class,
)

NO_READINGS = [float("nan"), float("inf"), -1.0, 0.0]


def test_batches_are_told_apart_by_their_size() -> None:
    sizes = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 500)
    assert [size_class(n) for n in sizes] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 5]


# -- passes ------------------------------------------------------------------------------------------------


def passes(*readings: tuple[int, float], times: int = 20) -> PassPrice:
    price = PassPrice()
    for tokens, seconds in readings * times:
        price.add(tokens, seconds)
    return price


def test_before_any_pass_nothing_has_a_price() -> None:
    price = PassPrice()
    assert not price.has_readings and price(5) == price.usual(5) == 0.0 and price.room(1) == 1


@pytest.mark.parametrize(
    ("readings", "tokens", "seconds"),
    [
        pytest.param([(1, 0.010)], 9, 0.010, id="with one size, more tokens are free until they are tried"),
        pytest.param([(1, 0.010), (3, 0.009), (9, 0.014)], 2, 0.0095, id="falling means are pooled"),
        pytest.param([(1, 0.010), (9, 0.014), (17, 0.022)], 13, 0.018, id="between sizes"),
        pytest.param([(1, 0.010), (17, 0.018), (33, 0.042)], 49, 0.058, id="beyond: the mean slope"),
        pytest.param([(8, 0.010), (9, 0.040)], 4, 0.005, id="below: no token costs more than its part"),
    ],
)
def test_the_curve_of_passes(readings: list[tuple[int, float]], tokens: int, seconds: float) -> None:
    assert passes(*readings)(tokens) == pytest.approx(seconds, rel=0.03)


def test_more_tokens_never_take_less_time() -> None:
    price = passes((1, 0.010), (5, 0.013), (9, 0.009), (12, 0.030), (20, 0.020), (64, 0.021))
    curve = [price(n) for n in range(1, 130)]
    assert curve[0] > 0.0 and all(a <= b for a, b in pairwise(curve))


def test_more_tokens_in_a_pass_are_priced_from_where_it_begins() -> None:
    price = passes((1, 0.010), (9, 0.014), (17, 0.022))
    extra = price.extra(1, 16)
    assert extra[0] == 0.0 and extra[8] == pytest.approx(price(9) - price(1))
    assert extra[16] == pytest.approx(0.012, rel=0.01)
    assert price.extra(9, 8)[8] == pytest.approx(0.008, rel=0.01)
    assert price.extra(1, 4, 4.0)[:5] == pytest.approx([extra[4 * k] for k in range(5)]), "nodes of a tree"


def test_prices_of_more_tokens_follow_the_next_pass() -> None:
    price = passes((1, 0.010), (9, 0.014))
    before = price.extra(1, 8)[8]
    for _ in range(200):
        price.add(9, 0.020)
    assert price.extra(1, 8)[8] > before + 0.003


@pytest.mark.parametrize("wrong", NO_READINGS)
def test_readings_that_are_none_are_left_out(wrong: float) -> None:
    price = PassPrice()
    price.add(1, wrong)
    assert not price.has_readings


def test_an_interruption_moves_a_price_little() -> None:
    price = passes((1, 0.010), times=50)
    price.add(1, 3.0)
    assert 0.010 < price(1) < 0.0105


def test_lasting_change_moves_a_price_soon() -> None:
    price = passes((1, 0.010), times=500)
    for _ in range(3 * WINDOW):
        price.add(1, 0.020)
    assert price(1) == pytest.approx(0.020, rel=0.1)


def test_a_first_pass_of_its_size_that_took_too_long_is_left_out_once() -> None:
    price = passes((1, 0.010))
    price.add(9, 0.080)  # kernels are prepared
    assert price(9) == pytest.approx(0.010) and price.usual(9) == 0.0
    price.add(9, 0.080)  # no, it costs that
    assert price(9) == pytest.approx(0.080)


def test_a_new_size_takes_no_longer_than_its_tokens_alone() -> None:
    price = passes((1, 0.010))
    for _ in range(2):  # the first is left out
        price.add(4, 9.0)  # the machine slept
    assert price(4) == pytest.approx(0.040)


def test_a_size_that_was_seen_long_ago_is_taken_to_cost_less() -> None:
    price = passes((1, 0.010), (9, 0.080), times=4)
    assert price(9) == pytest.approx(0.080, rel=0.1)
    for _ in range(1000):
        price.add(1, 0.010)
    assert 0.010 < price(9) < 0.045
    assert price.usual(9) == pytest.approx(0.080, rel=0.01), "what it took is not what it may take"
    price.add(9, 0.080)
    assert price(9) > 0.065, "one pass shows that it costs what it did"


def test_prices_of_a_file_are_what_it_says() -> None:
    """It does not say when a size was last seen: none is doubted before the first pass."""
    price = passes((1, 0.010), (9, 0.080), times=4)
    restored = PassPrice(list(price.means), list(price.counts), list(price.tokens))
    assert restored(9) == pytest.approx(price.usual(9)) and restored(1) == pytest.approx(0.010)


def test_where_rows_are_not_padded_no_size_is_doubted() -> None:
    price = PassPrice()
    for tokens, seconds in ((8, 0.010), (24, 0.080)) * 4:
        price.add(tokens, seconds, doubts=False)
    before = price(24)
    for _ in range(1000):
        price.add(8, 0.010, doubts=False)
    assert price(24) == pytest.approx(before) and before > 0.05


def test_drafts_grow_step_by_step_while_longer_passes_are_not_seen() -> None:
    price = PassPrice()
    for tokens, room in ((1, 1), (2, 3), (4, 7), (8, 15), (16, 31)):
        price.add(tokens, 0.01)
        assert price.room(1) == room
    assert price.room(4) == 7 and price.room(32) == 1


# -- a line --------------------------------------------------------------------------------------------------


def line(*readings: tuple[float, float], times: int = 40) -> Line:
    fit = Line()
    for tokens, seconds in readings * times:
        fit.add(tokens, seconds)
    return fit


def test_a_line_has_a_start_and_a_price_for_each_token() -> None:
    fit = line(*((n, 0.001 + 0.0005 * n) for n in (1, 2, 4, 8)))
    assert (fit.start, fit.each) == pytest.approx((0.001, 0.0005), rel=0.05)
    assert fit(20) == pytest.approx(0.011, rel=0.05)
    before = fit(4)
    fit.add(4, 3.0)
    assert before < fit(4) < 1.1 * before, "an interruption moves it little"
    fit = line((1, 0.001), (4, 0.004))
    for tokens in (1, 4) * WINDOW:
        fit.add(tokens, 0.003 * tokens)
    assert fit.each == pytest.approx(0.003, rel=0.15), "lasting change soon"
    one = line((2, 0.003), times=1)
    assert (one.start, one.each) == pytest.approx((0.0, 0.0015)), "one length: that of its tokens"


def test_neither_the_start_nor_the_token_is_ever_less_than_free() -> None:
    falling, steep = line((1, 0.009), (8, 0.002)), line((1, 0.0), (8, 0.06))
    assert falling.each == 0.0 < falling.start
    assert steep.start == 0.0 < steep.each


# -- drafts ----------------------------------------------------------------------------------------------


def called(price: DraftPrice, *readings: tuple[int, float], times: int = 40, batch: int = 1) -> DraftPrice:
    """Calls by their longest draft and seconds, with nothing to read."""
    for longest, seconds in readings * times:
        price.add(longest, 0, seconds, batch, batch)
    return price


def test_the_first_call_is_not_timed() -> None:
    """It prepares kernels and memory."""
    price = called(DraftPrice(), (1, 7.0), times=1)
    assert all(map(isnan, price(1)))
    called(price, (1, 0.003), times=1)
    assert price(1) == pytest.approx((0.0, 0.003))


def test_a_new_drafter_is_tried_with_one_token_twice_and_then_with_four() -> None:
    price, trials = DraftPrice(), list[int]()
    while price.trial:
        trials.append(price.trial)
        called(price, (trials[-1], 0.001 + 0.0005 * trials[-1]), times=1)
    assert trials == [1, 1, 4]
    assert price(1) == pytest.approx((0.001, 0.0005), rel=0.25), "two lengths show start and slope"


def test_each_size_of_batch_has_prices_of_its_own() -> None:
    price = called(DraftPrice(), (1, 0.001), (4, 0.004))
    called(price, (1, 0.005), (4, 0.008), batch=8)
    assert price(1) == pytest.approx((0.0, 0.001), abs=1e-4)
    assert price(8) == pytest.approx((0.004, 0.001), rel=0.1)


def test_an_unseen_size_of_batch_has_the_prices_of_the_nearest_one() -> None:
    price = called(DraftPrice(), (1, 0.001), (4, 0.001))
    called(price, (1, 0.005), (4, 0.005), batch=16)
    assert price(2) == price(1) != price(16) == price(32) == price(8)


def test_a_drafter_that_is_not_called_is_forgotten_ever_more_rarely() -> None:
    price, waits = called(DraftPrice(), (1, 0.5), times=3), list[int]()
    for _ in range(4):
        rounds = 0
        while not price.trial:
            price.left_out()
            rounds += 1
        waits.append(rounds)
        called(price, (1, 0.5), times=2)
    assert waits == [256, 1024, 4096, 8192]


def test_a_drafter_that_is_forgotten_is_tried_without_an_untimed_call() -> None:
    price = called(DraftPrice(), (1, 0.5), times=3)
    for _ in range(WAIT):
        price.left_out()
    assert price.trial == 1 and all(map(isnan, price(1)))
    called(price, (1, 0.001), times=1)
    assert price.trial == 4 and sum(price(1)) == pytest.approx(0.001, rel=0.2)


def test_a_price_that_is_not_known_is_not_forgotten() -> None:
    """Of a drafter that waits for its first call: that one prepares memory, whenever it is made."""
    price = DraftPrice()
    for _ in range(3 * WAIT):
        price.left_out()
    called(price, (1, 7.0), times=1)
    assert price.trial == 1 and all(map(isnan, price(1))) and price.wait == WAIT


def test_a_drafter_that_is_worth_a_call_after_its_trial_waits_no_longer_than_at_first() -> None:
    price = called(DraftPrice(), (1, 0.001), times=3)
    for _ in range(WAIT):
        price.left_out()
    called(price, (1, 0.001), times=2)
    assert price.wait == 1024.0
    called(price, (1, 0.001), times=1)
    assert price.wait == WAIT
    for _ in range(WAIT - 1):
        price.left_out()
    called(price, (1, 0.001), times=1)
    assert not price.trial and price.idle == 0.0, "a call starts the wait anew"


# -- reading -----------------------------------------------------------------------------------------------


def test_a_call_after_a_long_absence_teaches_the_price_of_reading_and_not_of_drafts() -> None:
    price = called(DraftPrice(), (1, 0.001), (4, 0.004))
    before = price(1)
    price.add(4, 500, 0.004 + 0.020, 1, 1)
    assert price(1) == before and price.reading.each == pytest.approx(0.020 / 500, rel=0.05)


def test_a_trial_that_reads_a_long_text_first_shows_nothing() -> None:
    price = called(DraftPrice(), (1, 0.5), times=1)
    for _ in range(2):
        price.add(1, 1000, 0.5, 1, 1)
        assert isnan(price(1)[0]) and price.trial == 1, "it is tried again"


def test_the_few_tokens_that_a_call_reads_are_no_part_of_its_price() -> None:
    """Ten tokens were written without it, and it reads them at 0.1 ms each."""
    price = DraftPrice()
    price.read(1000, 0.1)
    for _ in range(3):
        price.add(2, 10, 0.001 + 0.002, 1, 1)
    assert sum(price(1)) == pytest.approx(0.001, rel=0.2)


def test_where_several_requests_read_what_is_long_goes_by_the_request() -> None:
    """Eight requests with 16 tokens each are no long reading: it is what drafts begin with."""
    price = called(DraftPrice(), (1, 0.001), times=3, batch=8)
    price.add(4, 8 * 16, 0.004, 8, 8)
    assert not price.reading.readings
    price.add(4, 8 * 100, 0.4, 8, 8)
    assert price.reading.readings == 1.0


def test_a_pass_that_reads_has_a_start_that_is_not_the_price_of_reading() -> None:
    """24 tokens take 1.5 ms, 300 take 7: reading is 20 microseconds a token, not 60."""
    price = DraftPrice()
    for tokens in (24, 30, 300) * 30:
        price.read(tokens, 0.001 + 0.00002 * tokens)
    assert price.reading.each == pytest.approx(0.00002, rel=0.1)


def test_a_first_reading_that_took_too_long_does_not_make_drafts_free_for_good() -> None:
    """It prepared kernels: 10 ms a token, more than the first calls take for all they do."""
    price = DraftPrice()
    price.read(60, 0.6)
    for _ in range(6):
        price.add(2, 2, 0.003, 1, 1)
    for _ in range(50):
        price.read(1000, 0.01)
        price.add(2, 2, 0.003, 1, 1)
    assert sum(price(1)) > 0.0005


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 0.1), (100, float("nan")), (100, float("inf"))])
def test_a_reading_of_nothing_is_none(tokens: int, seconds: float) -> None:
    price = DraftPrice()
    price.read(tokens, seconds)
    assert price.reading.readings == 0.0


# -- rates -------------------------------------------------------------------------------------------------


def test_a_rate_is_that_of_its_kind_of_place_and_leans_on_all() -> None:
    rate = Rate()
    assert rate(True, 0.01) == 0.0
    rate.add(False, 1, 0.01, 1)
    assert rate(True, 0.01) == pytest.approx(100), "a place without rounds"
    for _ in range(100):
        rate.add(False, 1, 0.01, 1)
        rate.add(True, 10, 0.01, 1)
    assert 100 < rate(False, 0.01) < 160 < 940 < rate(True, 0.01) < 1000
    assert rate(False, 0.0) == rate(True, 0.0) == pytest.approx(550, rel=0.01), "without a plain round"


def test_a_rate_follows_what_is_recent() -> None:
    rate = Rate()
    for tokens in (1,) * 200 + (4,) * 60:
        rate.add(False, tokens, 0.01, 1)
    assert 370 < rate(False, 0.01) < 400


def test_a_round_of_a_batch_fades_as_much_as_one_of_a_request_alone() -> None:
    alone, batch = Rate(), Rate()
    for tokens in (1, 5, 2):
        alone.add(False, tokens, 0.08, 1)
        for _ in range(8):
            batch.add(False, tokens, 0.01, 8)
    assert batch(False, 0.0) / 8 == pytest.approx(alone(False, 0.0), rel=0.02)

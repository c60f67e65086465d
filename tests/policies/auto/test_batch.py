"""A round of several requests: which tokens `auto` buys for which of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from draftwise.policies.auto.drafts import DEEPEST, LENGTHS, WIDTH, Candidate, Planner, Share, Wide
from draftwise.policies.auto.prices import PassPrice

BATCH = 8
RATE = 800.0  # 8 requests, passes of 10 ms


def free(size: int) -> float:
    return 10e-3


def until_32(size: int) -> float:
    """A pass costs as much as a plain one up to 32 tokens, and in proportion beyond."""
    return 10e-3 * max(1.0, size / 32)


def full_at_32(size: int) -> float:
    """As before up to 32 tokens, and each one beyond takes 2 ms: more than any token is worth."""
    return 10e-3 + 2e-3 * max(0, size - 32)


def by_the_token(size: int) -> float:
    """Each token more costs 1 ms: 0.8 tokens."""
    return 2e-3 + 1e-3 * size


def passes(seconds: Callable[[int], float], sizes: Sequence[int] = (8, 16, 24, 32, 48, 64, 128)) -> PassPrice:
    price = PassPrice()
    for size in tuple(sizes) * 20:
        price.add(size, seconds(size), doubts=False)
    return price


def curve(chance: float, n: int = 16) -> list[float]:
    return [chance**k for k in range(1, n + 1)]


def everyone(chance: float, *, trial: int = 0, drafter: int = 0) -> dict[int, list[Share]]:
    return {request: [Share(drafter, curve(chance), trial, 0.0)] for request in range(BATCH)}


def plan(
    offers: Mapping[int, Sequence[Share]],
    seconds: Callable[[int], float] | PassPrice,
    *calls: tuple[float, float],
    padded: bool = False,
    lengths: Sequence[int] = LENGTHS,
    widths: Sequence[float] = (),
    trees: Callable[[int], float] | None = None,
) -> dict[int, Candidate]:
    price = seconds if isinstance(seconds, PassPrice) else passes(seconds)
    widths = widths or [1.0] * len(calls)
    wide = passes(trees) if trees else price
    return Planner(price, RATE, BATCH, padded, lengths, widths, calls, wide, WIDTH).plan(offers)


def sizes(drafts: Mapping[int, Candidate]) -> list[int]:
    return [drafts[request].length if request in drafts else 0 for request in range(BATCH)]


# -- the pass --------------------------------------------------------------------------------------------


def single(chance: float) -> list[Share]:
    return [Share(0, curve(chance), 0, 0.0)]


PADDED = {"padded": True}


@pytest.mark.parametrize(
    ("offers", "seconds", "options", "expected"),
    [
        pytest.param({}, free, {}, [0] * 8, id="without offers nobody drafts"),
        # room for 24 tokens more: three for each of eight, of the same chance
        pytest.param(everyone(0.6), until_32, {}, [3] * 8, id="what is free is filled and no more"),
        pytest.param(everyone(0.6), until_32, {"lengths": (1, 4, 8)}, [1] * 8, id="the next shorter length"),
        pytest.param(everyone(0.6), until_32, {"lengths": (2,)}, [2] * 8, id="the only length"),
        pytest.param(everyone(0.6), until_32, {"widths": [3.0]}, [1] * 8, id="a tree has room for its nodes"),
        # two that are surely right take what six others would have had
        pytest.param(
            *(everyone(0.3) | {2: single(0.95), 5: single(0.95)}, full_at_32, {}),
            *([0, 0, 12, 0, 0, 12, 0, 0],),
            id="room goes to the highest chances",
        ),
        # each costs 0.8: two of 0.9 and 0.81 are worth it, and no third
        pytest.param(everyone(0.9), by_the_token, {}, [2] * 8, id="as many as are worth it"),
        pytest.param(everyone(0.75), by_the_token, {}, [0] * 8, id="none is worth it"),
        # 32 tokens is the largest pass that was seen: 64 hold seven more for each request
        pytest.param(everyone(0.99), passes(free, (8, 16, 32)), {}, [7] * 8, id="a pass at most doubles"),
        # one token more for all eight rows costs 6.4 tokens, which one request alone does not gain
        pytest.param({0: single(0.99)}, by_the_token, PADDED, [0] * 8, id="padded: one pays for all rows"),
        # with eight that are right nine times of ten, 7.2 tokens by the first, then 6.5 and 5.8
        pytest.param(everyone(0.9), by_the_token, PADDED, [2] * 8, id="padded: a depth for all"),
        # their rows have that length anyway
        pytest.param(
            *(everyone(0.9) | {3: single(0.2)}, full_at_32, PADDED, [3] * 8),
            id="padded: the unsure as deep as the sure",
        ),
    ],
)
def test_what_is_bought(
    offers: Mapping[int, Sequence[Share]],
    seconds: Callable[[int], float] | PassPrice,
    options: dict[str, Any],
    expected: list[int],
) -> None:
    assert sizes(plan(offers, seconds, (0.0, 0.0), **options)) == expected


def test_the_gain_of_a_draft_is_its_tokens_less_what_they_add_to_the_pass() -> None:
    draft = plan(everyone(0.9), by_the_token, (0.0, 0.0))[0]
    assert draft.tokens == pytest.approx(0.9 + 0.81) and draft.drafter == 0 and not draft.trial
    assert draft.gain == pytest.approx(0.9 + 0.81 - 2 * 0.8, abs=0.02)


# -- wide drafts -----------------------------------------------------------------------------------------


def beside(chance: float, *, trial: int = 0, call: tuple[float, float] = (0.0, 0.0)) -> list[Share]:
    """Siblings that catch three of ten misses."""
    chain = curve(chance)
    survival = [c + 0.3 * (b - c) for b, c in zip((1.0, *chain), chain, strict=False)]
    return [Share(0, chain, trial, 0.0, Wide(survival, WIDTH, call))]


def all_beside(chance: float, **more: Any) -> dict[int, list[Share]]:
    return {request: beside(chance, **more) for request in range(BATCH)}


def widths(drafts: Mapping[int, Candidate]) -> set[int]:
    return {draft.width for draft in drafts.values()}


def until_64(size: int) -> float:
    return 10e-3 * max(1.0, size / 64)


FEW = (1, 2)


@pytest.mark.parametrize("padded", [False, True])
def test_chains_become_wide_where_that_takes_no_time(padded: bool) -> None:
    drafts = plan(all_beside(0.5), free, (0.0, 0.0), lengths=FEW, padded=padded)
    assert widths(drafts) == {WIDTH} and sizes(drafts) == [2] * BATCH
    assert drafts[0].tokens == pytest.approx(0.5 + 0.25 + 0.3 * 0.75) and not drafts[0].trial
    assert drafts[0].gain == pytest.approx(drafts[0].tokens)


def test_they_stay_chains_where_the_longer_pass_costs_more_than_siblings_catch() -> None:
    """Two tokens make 24 of a pass, with siblings 72: 1.25 ms more than up to 64, one token for 0.23 each."""
    assert widths(plan(all_beside(0.5), until_64, (0.0, 0.0), lengths=FEW)) == {WIDTH}
    assert widths(plan(all_beside(0.9), by_the_token, (0.0, 0.0), lengths=FEW)) == {1}
    slow = plan(all_beside(0.5), free, (0.0, 0.0), lengths=FEW, trees=lambda size: 20e-3)
    assert widths(slow) == {1}, "trees alone run slowly"
    call = plan(all_beside(0.5, call=(0.0, 2e-3)), free, (0.0, 0.0), lengths=FEW)
    assert widths(call) == {1}, "a depth of all trees takes 2 ms, 3.2 tokens of 1.8"
    call = plan(all_beside(0.5, call=(0.0, 0.5e-3)), free, (0.0, 0.0), lengths=FEW)
    assert widths(call) == {WIDTH} and call[0].gain == pytest.approx(call[0].tokens - 0.8 / BATCH)


def test_one_that_becomes_wide_lengthens_all_rows_if_they_are_padded() -> None:
    """Eight rows of nine tokens, 72, for siblings of one request; without padding there are 30."""
    offers = everyone(0.5) | {0: beside(0.5)}
    drafts = plan(offers, until_64, (0.0, 0.0), lengths=FEW, padded=True)
    assert widths(drafts) == {1} and len(drafts) == BATCH
    drafts = plan(offers, until_64, (0.0, 0.0), lengths=FEW)
    assert [draft.width for draft in drafts.values()] == [WIDTH] + [1] * 7


def test_trials_and_deep_drafts_stay_chains_and_a_pass_at_most_doubles_twice() -> None:
    assert widths(plan(all_beside(0.5, trial=2), free, (0.0, 0.0), lengths=FEW)) == {1}
    assert widths(plan(all_beside(0.999), free, (0.0, 0.0), lengths=(DEEPEST + 4,))) == {1}
    small = passes(free, (8, 16))
    assert widths(plan(all_beside(0.5), small, (0.0, 0.0), lengths=(1,))) == {WIDTH}, "40 of at most 56"
    assert widths(plan(all_beside(0.5), small, (0.0, 0.0), lengths=(2,))) == {1}, "72 of at most 56"


# -- calls -----------------------------------------------------------------------------------------------


def test_a_depth_that_does_not_pay_for_its_part_of_the_call_is_given_back() -> None:
    """Each token of the longest draft takes 2 ms: 1.6 tokens. One sure request alone gains less than that."""
    offers = everyone(0.5)
    offers[4] = [Share(0, curve(0.97), 0, 0.0)]
    deep, flat = sizes(plan(offers, free, (0.0, 0.0))), sizes(plan(offers, free, (0.0, 2e-3)))
    assert deep[4] >= 12 and max(flat) == flat[4] <= 3


def test_all_who_draft_in_a_call_pay_for_it() -> None:
    """A call of 3 ms takes 2.4 tokens: none of eight gains that alone, and together they do."""
    assert len(plan(everyone(0.4), free, (3e-3, 0.0))) == BATCH
    few = {request: shares for request, shares in everyone(0.4).items() if request < 2}
    assert plan(few, free, (3e-3, 0.0)) == {}


def test_a_drafter_whose_call_costs_more_than_its_drafts_gain_is_left_out() -> None:
    """Its requests go to the other one, which is right less often and costs nothing."""
    offers = {request: [Share(i, curve(0.8 - 0.2 * i), 0, 0.0) for i in (0, 1)] for request in range(BATCH)}
    cheap = plan(offers, until_32, (1e-3, 0.0), (0.0, 0.0))
    dear = plan(offers, until_32, (30e-3, 0.0), (0.0, 0.0))
    assert {one.drafter for one in cheap.values()} == {0}
    assert {one.drafter for one in dear.values()} == {1} and len(dear) == BATCH


def test_each_request_has_the_drafter_that_gains_most_for_it() -> None:
    offers = {
        request: [Share(i, curve(0.8 if i == request % 2 else 0.3), 0, 0.0) for i in (0, 1)]
        for request in range(BATCH)
    }
    drafts = plan(offers, until_32, (0.1e-3, 0.0), (0.1e-3, 0.0))
    assert [drafts[request].drafter for request in range(BATCH)] == [0, 1] * 4


def test_a_call_for_few_requests_is_not_made_where_another_drafter_serves_them_as_well() -> None:
    """A second call of 4 ms takes 3.2 tokens, more than one request gains by it."""
    offers = {request: [Share(0, curve(0.8), 0, 0.0)] for request in range(BATCH)}
    offers[7] = [Share(0, curve(0.7), 0, 0.0), Share(1, curve(0.8), 0, 0.0)]
    drafts = plan(offers, until_32, (1e-3, 0.0), (4e-3, 0.0))
    assert {one.drafter for one in drafts.values()} == {0} and len(drafts) == BATCH


# -- reading and trials ------------------------------------------------------------------------------------


def test_a_request_that_must_read_more_than_it_gains_does_not_draft() -> None:
    offers = everyone(0.6)
    offers[2] = [Share(0, curve(0.6), 0, 5.0)]
    drafts = plan(offers, until_32, (0.0, 0.0))
    assert set(drafts) == {0, 1, 3, 4, 5, 6, 7}


def test_reading_goes_off_the_gain_of_its_request() -> None:
    offers = everyone(0.6)
    offers[2] = [Share(0, curve(0.6), 0, 0.5)]
    drafts = plan(offers, free, (0.0, 0.0))
    assert drafts[3].gain - drafts[2].gain == pytest.approx(0.5)


def test_a_trial_is_as_long_as_it_is_to_be_and_marked() -> None:
    drafts = plan(everyone(0.6, trial=4), free, (0.0, 0.0))
    assert sizes(drafts) == [4] * BATCH and all(one.trial for one in drafts.values())


def test_a_depth_pays_for_what_its_own_tokens_add_to_the_pass() -> None:
    """The first three depths are free in the pass. The fourth adds 2.5 ms to it, 2 tokens, and as much to the
    call, and gains 3.2."""
    offers = {request: [Share(0, [0.9, 0.8, 0.7, 0.4], 0, 0.0)] for request in range(BATCH)}
    sizes_of_passes = (8, 16, 24, 32, 40, 48, 64, 128)
    assert sizes(plan(offers, passes(until_32, sizes_of_passes), (0.0, 2.0 / RATE))) == [3] * BATCH
    assert sizes(plan(offers, passes(until_32, sizes_of_passes), (0.0, 1.0 / RATE))) == [4] * BATCH


def test_reading_counts_where_a_request_chooses_its_drafter() -> None:
    """The first would gain more, if it had read the text."""
    offers = {0: [Share(0, [0.9], 0, 0.8), Share(1, [0.5], 0, 0.0)]}
    assert plan(offers, free, (0.0, 0.0), (0.0, 0.0))[0].drafter == 1


def test_where_rows_are_padded_the_widest_draft_of_a_depth_is_paid_for() -> None:
    """A tree of four nodes and chains beside it: all rows have four tokens for each depth."""
    offers = {request: [Share(int(request == BATCH - 1), [0.5], 0, 0.0)] for request in range(BATCH)}
    chains = {request: [Share(0, [0.5], 0, 0.0)] for request in range(BATCH)}
    calls = ((0.0, 0.0), (0.0, 0.0))
    assert len(plan(chains, full_at_32, *calls, padded=True, widths=(1.0, 4.0))) == BATCH
    assert not plan(offers, full_at_32, *calls, padded=True, widths=(1.0, 4.0))

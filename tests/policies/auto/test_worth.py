"""What a draft is worth, in numbers."""

from __future__ import annotations

import pytest

from draftwise.policies.auto.candidates import best_length, best_up_to, steps, trial

CURVE = [0.9, 0.7, 0.4, 0.1]
LENGTHS = (1, 2, 3, 4)


def test_a_trial_has_to_pay_for_the_longer_pass_alone() -> None:
    """A draft whose cost is unknown is free, but not the tokens that the longer pass would have written."""
    free, dear = (trial(0, 3, CURVE, LENGTHS, lost) for lost in (0.0, 2.5))
    assert free.gain == pytest.approx(2.1) and dear.gain == pytest.approx(-0.4)
    assert free.length == dear.length == 3 and free.tokens == pytest.approx(2.0) and free.trial


def test_a_token_is_drafted_if_its_chance_is_above_its_price() -> None:
    """Of 10 tokens a second, a token of 0.05 s costs half a token."""
    found = best_length(0, CURVE, (0.01, 0.05, [0.0] * 5), 10.0, LENGTHS)
    assert found.length == 2
    assert found.tokens == pytest.approx(1.6) and found.gain == pytest.approx(1.6 - 0.1 - 1.0)


@pytest.mark.parametrize("each", [0.0, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("nodes", [1.0, 2.0])
def test_up_to_each_length_the_best_draft_is_that_of_the_lengths_within_it(each: float, nodes: float) -> None:
    extra = [0.0, 0.0, 0.01, 0.03, 0.06]
    found = best_up_to(3, CURVE, (0.01, each, extra), 10.0, LENGTHS, nodes=nodes)
    for width, worth in zip(LENGTHS, found, strict=True):
        within = [n for n in LENGTHS if n * nodes <= width]
        gains = {n: sum(CURVE[:n]) - 10.0 * (0.01 + each * n + extra[n]) for n in within}
        most = max(gains.values(), default=0.0)
        assert worth.gain == pytest.approx(max(0.0, most))
        assert most <= 0.0 or (gains[worth.length] == pytest.approx(most) and worth.drafter == 3)


def test_a_draft_of_one_length_needs_a_pass_that_is_as_wide() -> None:
    made = trial(0, 3, CURVE, LENGTHS, 0.0)
    assert [worth.length for worth in steps(made, LENGTHS)] == [0, 0, 3, 3]

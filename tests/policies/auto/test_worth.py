"""What a draft is worth, in numbers."""

from __future__ import annotations

import pytest

from draftwise.policies.auto.worth import best_length, trial

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

"""Prices of a second: what the page on `auto` says of them."""

from __future__ import annotations

from studies.theory import rate


def test_the_loss_against_the_best_arm_does_not_grow_with_the_rounds() -> None:
    marks = [2**k for k in range(6, 12)]
    lost = rate.lost(rate.total, rate.CLEAR, marks, seeds=6).mean(axis=0)
    late = rate.lost(rate.total, rate.CLEAR, marks, delay=32, seeds=6).mean(axis=0)
    assert lost[-1] < 1.3 * lost[0] + 2.0 and late[-1] < 1.3 * late[0] + 2.0
    assert lost[-1] + 20.0 < late[-1] < lost[-1] + 32 * 3.5  # a late round costs what all arms differ by

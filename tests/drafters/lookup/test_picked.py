from __future__ import annotations

from itertools import count
from math import log

import pytest

from draftwise.core.arms import Stop
from draftwise.core.drafts import Job, Signals
from draftwise.drafters.lookup.picked import chain, share, tally

from .texts import make_request


def job(length: int, *stops: Stop) -> Job:
    return Job(make_request(), length, stops or (Stop(),))


def sure(p: float) -> Signals:
    return Signals(p, 1.0 - p, 0.0, p)


def test_takes_no_more_than_the_job_asks_for_from_an_endless_walk() -> None:
    made = chain(job(3), ((i, sure(0.5)) for i in count(7)))
    assert made.tokens == (7, 8, 9)
    assert made.is_chain
    assert made.dist is None
    assert made.probs == (0.5, 0.5, 0.5)
    assert len(made.signals) == 3


def test_the_token_that_triggers_a_rule_is_kept() -> None:
    steps = [(1, sure(0.9)), (2, sure(0.9)), (3, sure(0.3)), (4, sure(0.9))]
    assert chain(job(4, Stop("confidence", 0.5)), steps).tokens == (1, 2, 3)


def test_each_position_has_its_own_rule_and_the_last_holds_on() -> None:
    steps = [(i, sure(0.6)) for i in range(6)]
    rules = (Stop("never"), Stop("confidence", 0.5), Stop("confidence", 0.7))
    assert chain(job(6, *rules), steps).tokens == (0, 1, 2)


def test_a_difference_rule_sees_the_signals_before() -> None:
    steps = [(i, Signals(0.5, 0.0, entropy, 0.5)) for i, entropy in enumerate((0.25, 0.25, 1.0, 1.0))]
    assert chain(job(4, Stop("svip-difference", 0.3)), steps).tokens == (0, 1, 2)


@pytest.mark.parametrize("counts", [[1], [4], [3, 1], [1, 5, 2], [1] * 50])
def test_tally_is_the_law_of_the_counts_and_a_half(counts: list[int]) -> None:
    total = sum(counts) + 0.5
    distribution = sorted([n / total for n in (*counts, 0.5)], reverse=True)
    seen = tally(counts)
    assert (seen.top1, seen.top2, seen.chosen) == pytest.approx(
        (distribution[0], distribution[1], distribution[0])
    )
    assert seen.entropy == pytest.approx(-sum(p * log(p) for p in distribution))
    assert seen.chosen == pytest.approx(share(max(counts), sum(counts)))

"""The enumerated truth is right, and the orderings that the theory page reports hold."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from draftwise.core.arms import Stop
from studies.theory.estimators import (
    Chain,
    Drafter,
    History,
    Picked,
    chunk,
    clustered,
    count,
    ends,
    example,
    forms,
    greedy,
    locked,
    near,
    random_distribution,
    rounds,
    seen,
    sums,
    texts,
    windows,
)

P = random_distribution(3, 21)
Q = near(P, random_distribution(3, 22), 0.6)
DRAFTERS: dict[str, Drafter] = {
    "model": Chain(Q, 3),
    "greedy model": Chain(greedy(Q), 3),
    "stops": Chain(Q, 3, (Stop("cumulative", 0.3),)),
    "lookup": Picked(lambda history: (len(history) % 3, 1, 2), 3),
    "nothing": Chain(Q, 0),
}


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_what_rounds_write_has_the_targets_law(drafter: Drafter) -> None:
    """Lossless: the marginal distribution of a text of four tokens, written round by round, is the
    target's."""
    written: dict[History, float] = defaultdict(float)
    for (text, at), prob in ends(P, drafter, 4).items():
        if at >= 4:  # the round that ends the text, of which there is one
            written[text] += prob
    distribution = dict(texts(P, 4))
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-12)
    assert written == pytest.approx(distribution, abs=1e-12)


def test_a_round_by_hand() -> None:
    """p = (1/2, 1/2), q = (3/4, 1/4), one drafted token: token 0 is kept with 2/3, token 1 always."""
    half, biased = (lambda history: np.array([0.5, 0.5])), (lambda history: np.array([0.75, 0.25]))
    distribution = rounds(half, Chain(biased, 1), ())
    assert distribution == pytest.approx(
        {(0, 0): 0.25, (0, 1): 0.25, (1, 0): 0.125, (1, 1): 0.125, (1,): 0.25}
    )
    assert chunk(half, Chain(biased, 1)) == pytest.approx(1.75)
    # two tokens: one round if the draft is accepted, else two
    assert count(half, Chain(biased, 1), 2) == pytest.approx(1.25)


@pytest.mark.parametrize("length", [1, 2, 5, 10])
def test_clustered_agreement_is_lost_on_the_product_form(length: int) -> None:
    p, drafter = clustered(length)
    assert chunk(p, drafter) == 1.0 + length / 2
    assert windows(p, drafter, "rb")[0] == windows(p, drafter, "ratio")[0] == 1.0 + length / 2
    assert windows(p, drafter, "product")[0] == 1.0 + (length - 1) / 4 + 0.5


def test_an_estimate_that_is_cut_off_prefers_the_worse_drafter_whoever_plays() -> None:
    p, steady, starter = locked()
    assert chunk(p, starter) == pytest.approx(2.2)
    assert chunk(p, steady) == pytest.approx(1.9375)
    for played in (steady, starter):
        assert seen(p, steady, played, "rb", weigh=False)[0] > seen(p, starter, played, "rb", weigh=False)[0]
        assert seen(p, starter, played, "rb")[0] == pytest.approx(2.2)
        assert seen(p, steady, played, "rb")[0] == pytest.approx(1.9375)


def test_the_integrated_form_has_the_least_variance_of_the_unbiased() -> None:
    p, kinds, played = example()
    for drafter in kinds.values():
        found = forms(p, drafter, played)
        truth = chunk(p, drafter)
        assert found["rb"][1] < found["ratio"][1] <= found["own rounds"][1] + 1e-12
        assert found["rb"][1] <= found["weighted"][1] + 1e-12
        for form in ("rb", "ratio", "weighted", "own rounds"):
            assert found[form][0] == pytest.approx(truth, abs=1e-12)
        assert found["product"][0] - truth > 0.01
        assert found["cut off"][0] < truth + 1e-12


def test_the_rounds_of_a_text_are_unbiased_but_for_the_product_form() -> None:
    found = sums(P, Chain(Q, 2), 5)
    assert found["rb"] == pytest.approx(found["truth"], abs=1e-12)
    assert found["ratio"] == pytest.approx(found["truth"], abs=1e-12)
    assert abs(found["product"] - found["truth"]) > 1e-3

"""The exact distributions of short texts, and the chi-square test, against SciPy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from draftwise.core.sampling import Sampling
from draftwise.testing import SimTarget, exact, exact_of, markov, p_value
from draftwise.testing.exact import fit, uniformity

P = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.5, 0.25, 0.25]])


def test_a_text_has_the_product_of_its_tokens_probabilities() -> None:
    known = exact(markov(P), [0], 3, 2, Sampling(temperature=1.0))
    assert known[(1, 2)] == pytest.approx(0.3 * 0.6) and sum(known.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7, top_k=2, presence_penalty=0.3), Sampling()])
def test_the_target_says_itself_what_its_logits_say(sampling: Sampling) -> None:
    by_hand = exact(markov(P), [0, 1], 3, 3, sampling)
    said = exact_of(SimTarget(markov(P), 3), [0, 1], 3, sampling)
    assert said == pytest.approx({text: p for text, p in by_hand.items() if p > 0.0})


@pytest.mark.parametrize("cells", [2, 3, 5, 20, 64, 301])
@pytest.mark.parametrize("spread", [0.1, 1.0, 2.0])
def test_p_values_are_scipys(cells: int, spread: float) -> None:
    rng = np.random.default_rng(cells)
    expected = np.full(cells, 50.0)
    seen = np.round(expected + spread * rng.normal(size=cells) * 7.0)
    wanted = chisquare(seen, expected * seen.sum() / expected.sum()).pvalue
    assert fit(seen.tolist(), expected.tolist()) == pytest.approx(wanted, abs=1e-12)


def test_rare_texts_are_pooled_and_impossible_ones_are_found() -> None:
    assert p_value({(0,): 500, (1,): 500}, {(0,): 0.5, (1,): 0.499, (2,): 0.001}) > 0.1
    assert p_value({(0,): 600, (1,): 400}, {(0,): 0.5, (1,): 0.5}) < 1e-6
    assert p_value({(0,): 999, (2,): 1}, {(0,): 1.0, (1,): 0.0}) == 0.0
    assert p_value({(0,): 10}, {(0,): 1.0}) == 1.0


def test_quantiles_that_are_not_uniform_are_found() -> None:
    even = np.random.default_rng(1).random(3000)
    assert uniformity(even) > 1e-3 and kstest(even, "uniform").pvalue > 1e-3
    assert uniformity(even**1.3) < 1e-6

"""Cursors and windows against values worked by hand, enumeration, and the loop's own rounds."""

from __future__ import annotations

from math import isclose

import pytest

from draftwise.core.arms import Stop
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Grade
from draftwise.policies.recorders.cursors import FORMS, Cursor, window
from studies.theory.estimators import (
    Chain,
    Distribution,
    Drafter,
    History,
    Picked,
    chunk,
    count,
    ends,
    grade,
    greedy,
    near,
    random_distribution,
    rounds,
    seen,
    steps,
    texts,
    windows,
)

GRADES = (Grade(0.5, 0.6), Grade(0.8, 0.9), Grade(0.25, 0.3))
RIGHT, WRONG = Grade(1.0, 1.0), Grade(0.0, 0.0)
UNBIASED = ("rb", "ratio")
BUDGET = 5

P = random_distribution(3, 1, sharp=1.5)
Q = near(P, random_distribution(3, 2, sharp=2.0), 0.7)
OTHER = near(P, random_distribution(3, 3, sharp=2.0), 0.8)


def copies(history: History) -> History:
    """A lookup that repeats what it saw, so its draft depends on where its round starts."""
    return (*history[-2:], len(history) % 3, sum(history) % 3)[:3]


RULES = (Stop("svip", 0.9), Stop("svip-difference", 0.1), Stop("never"))
CASES: dict[str, tuple[Distribution, Drafter]] = {
    "chain": (P, Chain(Q, 3)),
    "chain of one": (P, Chain(Q, 1)),
    "no draft": (P, Chain(Q, 0)),
    "greedy drafter, sampled target": (P, Chain(greedy(Q), 3)),
    "sampled drafter, greedy target": (greedy(P), Chain(Q, 3)),
    "greedy": (greedy(P), Chain(greedy(Q), 3)),
    "four tokens": (random_distribution(4, 7), Chain(random_distribution(4, 8), 2)),
    "picked": (P, Picked(copies, 3)),
    "picked, greedy target": (greedy(P), Picked(copies, 3)),
    "stops on confidence": (P, Chain(Q, 3, (Stop("confidence", 0.4),))),
    "stops on the joint": (P, Chain(Q, 3, (Stop("cumulative", 0.3),))),
    "a rule for each position": (P, Chain(Q, 3, RULES)),
}
cases = pytest.mark.parametrize(("p", "drafter"), CASES.values(), ids=CASES)


# -- by hand ---------------------------------------------------------------------------------------


def test_a_window_by_hand() -> None:
    assert isclose(window(GRADES, 3), 1 + 0.6 + 0.5 * 0.9 + 0.5 * 0.8 * 0.3)
    assert isclose(window(GRADES, 3, form="ratio"), 1 + 0.5 + 0.5 * 0.8 + 0.5 * 0.8 * 0.25)
    assert isclose(window(GRADES, 3, form="product"), 1 + 0.6 + 0.6 * 0.9 + 0.6 * 0.9 * 0.3)
    assert [window(GRADES, n) for n in range(3)] == pytest.approx([1.0, 1.6, 2.05]), "as long as its arm"


def test_a_cursor_by_hand() -> None:
    """Length 2. `ratio`: half begins again after token 1; after token 2, 0.4 has its draft accepted, 0.4 has
    one token accepted and 0.2 begins again; so token 3 ends a round with 0.4 + 0.6 * 0.75."""
    expected = {"ratio": (0.5, 0.2, 0.85), "rb": (0.4, 0.1, 0.82), "product": (0.4, 0.1, 0.862)}
    for form, chances in expected.items():
        cursor = Cursor(2, form=form)
        assert [cursor.step(g) for g in GRADES] == pytest.approx(chances)


def test_a_weighted_window_by_hand() -> None:
    played = (0.5, 0.25, 1.0)
    assert isclose(window(GRADES, 3, played=played), 1 + 0.6 + 0.5 * 0.9 / 0.5 + 0.4 * 0.3 / (0.5 * 0.25))
    assert isclose(window(GRADES[:2], 3, played=played), 1 + 0.6 + 0.5 * 0.9 / 0.5)
    assert isclose(window(GRADES[:2], 3, form="ratio", played=played), 1 + 0.5 + 0.4 / 0.5)
    assert isclose(window(GRADES[:1], 3, played=played), 1.6)
    assert isclose(window(GRADES, 1, played=played), 1.6)


def test_nine_matches_and_a_miss_are_ten_a_round() -> None:
    """Ten a round at the cursor, where windows at every position would say five and a half."""
    text = [*[RIGHT] * 9, WRONG] * 3
    cursor = Cursor(20)
    assert [i for i, g in enumerate(text, 1) if cursor.step(g) == 1.0] == [10, 20, 30]
    everywhere = [window(text[i:], 20) for i in range(10)]
    assert sum(everywhere) / 10 == 5.5


def test_without_a_row_the_realised_token_is_all_there_is() -> None:
    bare = [Grade(g.accept) for g in GRADES]
    assert all(g.overlap != g.overlap for g in bare)
    for form in FORMS:
        assert window(bare, 3, form=form) == window(GRADES, 3, form="ratio")
        one, other = Cursor(2, form=form), Cursor(2, form="ratio")
        assert [one.step(g) for g in bare] == [other.step(g) for g in GRADES]


def test_a_rule_that_fires_ends_the_draft_after_its_token() -> None:
    sure, unsure = Signals(0.9, 0.1, 0.3, 0.9), Signals(0.5, 0.4, 0.9, 0.5)
    grades = [Grade(0.8, 0.7, sure), Grade(0.6, 0.5, unsure), Grade(0.9, 0.9, sure)]
    stops = (Stop("max-confidence", 0.8),)
    assert isclose(window(grades, 3, stops=stops), 1 + 0.7 + 0.8 * 0.5)
    cursor = Cursor(3, stops=stops)
    # one that accepted both tokens is through; so is one that began again and accepted the second alone
    expected = [0.3, 0.5, 0.8 * 0.6 + 0.2 * 0.6 + 0.4 * 0.1]
    assert [cursor.step(g) for g in grades] == pytest.approx(expected)


# -- by enumeration --------------------------------------------------------------------------------


@cases
def test_windows_are_unbiased(p: Distribution, drafter: Drafter) -> None:
    truth = chunk(p, drafter)
    for form in UNBIASED:
        assert windows(p, drafter, form)[0] == pytest.approx(truth, abs=1e-12)


@cases
def test_the_steps_of_a_text_sum_to_the_mean_of_the_arms_own_rounds(
    p: Distribution, drafter: Drafter
) -> None:
    """All steps: the rounds that end within the text. All but the last, plus one: a text that ends there."""
    distribution = list(texts(p, BUDGET))
    within = sum(prob for (_, at), prob in ends(p, drafter, BUDGET).items() if at <= BUDGET)
    for form in UNBIASED:
        walks = [(prob, steps(p, drafter, text, form)) for text, prob in distribution]
        assert sum(prob * sum(walk) for prob, walk in walks) == pytest.approx(within, abs=1e-12)
        cut = sum(prob * (sum(walk[:-1]) + 1.0) for prob, walk in walks)
        assert cut == pytest.approx(count(p, drafter, BUDGET), abs=1e-12)


@cases
def test_the_ratio_form_is_the_chance_given_the_text_itself(p: Distribution, drafter: Drafter) -> None:
    truth = ends(p, drafter, BUDGET)
    for text, prob in texts(p, BUDGET):
        for at, step in enumerate(steps(p, drafter, text, "ratio"), 1):
            assert prob * step == pytest.approx(truth.get((text, at), 0.0), abs=1e-12)


def test_under_greedy_the_steps_are_the_rounds() -> None:
    for name in ("greedy", "picked, greedy target", "no draft"):
        p, drafter = CASES[name]
        p = greedy(p)
        ((text, _),) = texts(p, 12)
        truth = [float((text, at) in ends(p, drafter, 12)) for at in range(1, 13)]
        assert {0.0, 1.0} >= set(truth)
        for form in FORMS:
            assert steps(p, drafter, text, form) == truth


@pytest.mark.parametrize("name", ["chain", "greedy drafter, sampled target", "picked"])
def test_the_product_form_is_biased_under_sampling(name: str) -> None:
    p, drafter = CASES[name]
    assert abs(windows(p, drafter, "product")[0] - chunk(p, drafter)) > 0.004


def test_the_bias_of_the_product_form_at_two_tokens_is_a_covariance() -> None:
    p, drafter, a, b = P, Chain(Q, 2), {}, {}
    for token in range(3):
        a[token] = grade(p(()), Q(()), token).accept
        b[token] = grade(p((token,)), Q((token,)), 0).overlap
    row = [float(x) for x in p(())]
    mean = [sum(row[t] * value[t] for t in range(3)) for value in (a, b)]
    covariance = sum(row[t] * a[t] * b[t] for t in range(3)) - mean[0] * mean[1]
    bias = windows(p, drafter, "product")[0] - chunk(p, drafter)
    assert bias == pytest.approx(-covariance, abs=1e-12)
    assert abs(covariance) > 0.001


@pytest.mark.parametrize("name", ["chain", "sampled drafter, greedy target", "picked", "four tokens"])
def test_weights_make_the_tokens_of_anothers_round_enough(name: str) -> None:
    p, drafter = CASES[name]
    length = drafter.length
    played = Chain(OTHER if name != "four tokens" else random_distribution(4, 9), length)
    for form in UNBIASED:
        assert seen(p, drafter, played, form)[0] == pytest.approx(chunk(p, drafter), abs=1e-12)
        cut = seen(p, drafter, played, form, weigh=False)[0]
        assert cut < chunk(p, drafter) - 0.003
    short = seen(P, Chain(Q, 3), Chain(OTHER, 1), "rb")[0]  # one token past the played draft
    assert short == pytest.approx(chunk(P, Chain(Q, 2)), abs=1e-12)
    # under greedy a rejected draft hides the rest, and what was seen is a lower bound
    p = greedy(P)
    better, worse = Chain(p, 3), Picked(lambda history: ((int(P(history).argmax()) + 1) % 3,), 3)
    assert (chunk(p, better), seen(p, better, worse, "rb")[0]) == (4.0, 2.0)


def test_a_text_that_ends_cuts_every_chunk() -> None:
    """Token 0 ends the text: no draft goes past it, and the terms after it are 0."""
    drafter, length = Chain(Q, 3), 3
    distribution = rounds(P, drafter, ()).items()
    truth = sum(prob * (1 + min(len(tokens) - 1, (*tokens, 0).index(0) + 1)) for tokens, prob in distribution)
    for form in UNBIASED:
        mean = sum(
            prob * window(drafter.grades(P, (), text[: (*text, 0).index(0) + 1]), length, form=form)
            for text, prob in texts(P, length)
        )
        assert mean == pytest.approx(truth, abs=1e-12)
    assert truth < chunk(P, drafter) - 0.1

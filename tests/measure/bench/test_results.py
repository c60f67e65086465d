from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from draftwise.core.arms import Arm
from draftwise.measure.results import arm_values, identical, interval, mean_rate, speedup, summarize


def row(method: str, prompt: int, seconds: float, tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {
        "key": f"{method} {prompt}",
        "method": method,
        "engine": "draftwise",
        "category": "a" if prompt < 2 else "b",
        "batch": 1,
        "prompt": prompt,
        "new_tokens": tokens,
        "seconds": seconds,
        "rounds": 5,
        "accepted": tokens - 5,
        "drafted": 8,
        "identical": None,
        "seconds_by_phase": {"draft": seconds / 2},
        "pulls": {"x:1": 5},
        "text_sha": "same",
    } | more


PLAIN = [row("none", i, s, accepted=0, drafted=0) for i, s in enumerate([1.0, 2.0, 3.0])]
MINE = [row("m", i, s) for i, s in enumerate([0.5, 2.0, 1.5])]


def test_a_row_adds_up() -> None:
    results = summarize(identical(PLAIN + MINE), methods=["none", "m"], greedy=True)
    assert [(r["category"], r["method"]) for r in results] == [
        (c, m) for c in ("all", "a", "b") for m in ("none", "m")
    ]
    one = results[1]
    assert (one["prompts"], one["new_tokens"], one["seconds"], one["rounds"]) == (3, 30, 4.0, 15)
    assert one["speedup"] == 6.0 / 4.0
    assert one["tokens_per_s"] == 7.5
    assert one["mean_accepted"] == 1.0
    assert one["tokens_per_round"] == 2.0
    assert one["acceptance_rate"] == 15 / 24
    assert one["seconds_by_phase"] == {"draft": 2.0}
    assert one["pulls"] == {"x:1": 15}
    assert one["identical"] == 3
    assert results[3]["speedup"] == 3.0 / 2.5
    assert [r["interval"] for r in results] == [None] * len(results), "three prompts are too few for one"
    assert results[0]["acceptance_rate"] is None, "nothing drafted is not a rate of zero"


def test_the_time_to_the_first_tokens_is_set_apart() -> None:
    apart = [row("none", i, 3.0, ttft_s=1.0 + i, first_tokens=1 + i) for i in range(2)]
    (one,) = summarize(apart, methods=["none"], greedy=True)[:1]
    assert (one["ttft_s"], one["tpot_s"]) == (1.5, (6.0 - 3.0) / (20 - 3))
    of_one_token = [row("none", 0, 1.0, tokens=1, ttft_s=1.0, first_tokens=1)]
    (one,) = summarize(of_one_token, methods=["none"], greedy=True)[:1]
    assert (one["ttft_s"], one["tpot_s"]) == (1.0, None), "there is no later token"
    nothing: list[dict[str, Any]] = [{}, {"ttft_s": None, "first_tokens": 1}]
    for unknown in nothing:
        (one,) = summarize([apart[0], row("none", 1, 3.0, **unknown)], methods=["none"], greedy=True)[:1]
        assert (one["ttft_s"], one["tpot_s"]) == (None, None), "a part of the prompts says nothing of all"


def test_spec_benchs_figure_is_the_ratio_of_mean_rates() -> None:
    mine, plain = [10 / 0.5, 10 / 2.0, 10 / 1.5], [10 / 1.0, 10 / 2.0, 10 / 3.0]
    (_, one) = summarize(PLAIN + MINE, methods=["none", "m"], greedy=True)[:2]
    assert one["mean_of_ratios"] == pytest.approx(sum(mine) / sum(plain))
    assert mean_rate(MINE) == pytest.approx(sum(mine) / 3)


def test_drawn_texts_are_compared_per_token() -> None:
    longer = [row("m", i, 2 * s, tokens=20) for i, s in enumerate([1.0, 2.0, 3.0])]
    assert speedup(longer, PLAIN) == 0.5
    assert speedup(longer, PLAIN, per_token=True) == 1.0
    assert interval(longer, PLAIN, per_token=True) == [1.0, 1.0]
    (_, one) = summarize(PLAIN + longer, methods=["none", "m"], greedy=False)[:2]
    assert (one["speedup"], one["identical"]) == (1.0, None)


def test_the_interval_is_over_prompts() -> None:
    low, high = interval(MINE, PLAIN)
    assert low < speedup(MINE, PLAIN) < high
    assert (low, high) == (1.0, 2.0), "the worst and the best prompt, three times over, are not that rare"
    many = interval(MINE * 40, PLAIN * 40)
    assert high - low > 4 * (many[1] - many[0])
    assert interval(MINE, PLAIN) == [low, high], "the same draws every time"


@pytest.mark.parametrize(("prompts", "told"), [(1, False), (4, False), (5, True)])
def test_fewer_than_five_prompts_have_no_interval(prompts: int, told: bool) -> None:
    plain = [row("none", i, 3.0) for i in range(prompts)]
    mine = [row("m", i, 1.0 + i) for i in range(prompts)]
    for result in summarize(plain + mine, methods=["none", "m"], greedy=True)[:2]:
        assert (result["interval"] is not None) == told and result["prompts"] == prompts


def test_prompts_that_were_decoded_together_are_one_case() -> None:
    """Half of the batches were disturbed: an interval over prompts would be far too narrow."""
    plain = [row("none", i, 1.0, batch=4) for i in range(40)]
    mine = [row("m", i, 1.0 if i // 4 % 2 else 0.5, batch=4) for i in range(40)]
    (_, one) = summarize(plain + mine, methods=["none", "m"], greedy=True)[:2]
    low, high = interval(mine, plain)
    assert one["interval"][1] - one["interval"][0] > 1.7 * (high - low)
    few = summarize(plain[:16] + mine[:16], methods=["none", "m"], greedy=True)[:2]
    assert [result["interval"] for result in few] == [None, None], "of four batches"


def test_only_prompts_that_all_have_finished_count() -> None:
    results = summarize(PLAIN + MINE[:2], methods=["none", "m"], greedy=True)
    assert {r["prompts"] for r in results if r["category"] == "all"} == {2}
    assert {r["category"] for r in results} == {"all", "a"}


def test_batch_sizes_stay_apart() -> None:
    larger = [r | {"batch": 8, "seconds": r["seconds"] / 4} for r in PLAIN + MINE]
    results = summarize(PLAIN + MINE + larger, methods=["none", "m"], greedy=True)
    rates = {(r["batch"], r["method"]): r["tokens_per_s"] for r in results if r["category"] == "all"}
    assert rates[8, "m"] == 4 * rates[1, "m"]
    assert {r["speedup"] for r in results if r["category"] == "all" and r["method"] == "m"} == {1.5}


def test_a_category_called_all_is_no_second_total() -> None:
    rows = [r | {"category": "all"} for r in PLAIN + MINE]
    results = summarize(rows, methods=["none", "m"], greedy=True)
    assert [(r["category"], r["method"]) for r in results] == [("all", "none"), ("all", "m")]


def test_values_that_are_no_numbers_yet_are_left_out() -> None:
    """As the bound of an arm that was not played; JSON has no word for it."""
    learner = SimpleNamespace(estimates=lambda: [0.25, inf])
    policy: Any = SimpleNamespace(arms=(Arm("a", 1), Arm("b", 1)), learner=learner)
    assert arm_values(policy) == {"a:1": 0.25}


def test_identical_is_about_plain_decodings_tokens() -> None:
    rows = identical([*PLAIN, *MINE[:2], MINE[2] | {"text_sha": "other"}])
    assert [r["identical"] for r in rows] == [True] * 5 + [False]
    assert identical(MINE) == MINE, "nothing to compare with yet"

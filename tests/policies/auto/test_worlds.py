"""`auto` in worlds whose seconds are counted: never much below plain decoding, near the best fixed arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import pytest

from draftwise.core.loop import Loop
from draftwise.core.round import Round
from draftwise.policies.auto.policy import AutoPolicy
from studies.speed.batches import speed
from tests.effort import some
from tests.policies.auto import drawn, script
from tests.policies.auto.script import Model, Prices, Right, Stage, always

GOOD = {"good": always(0.75)}


def useless(n: int) -> dict[str, Right]:
    return {f"useless{i}": always(0.02) for i in range(n)}


def best_fixed(stage: Stage, name: str, batch: int, lengths: Sequence[int]) -> float:
    return min(stage.seconds(f"static?length={n}&drafter={name}", batch=batch) for n in lengths)


# -- the best fixed arm --------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "share"), [(1, 1.0), (8, 0.97), (32, 0.99)])
def test_nearly_as_fast_as_the_best_fixed_length_at_every_batch(
    monkeypatch: pytest.MonkeyPatch, batch: int, share: float
) -> None:
    """At batch 32 one token a draft fills the pass up to where tokens begin to cost, and more lose."""
    stage = Stage(monkeypatch, GOOD, texts=max(24, 3 * batch))
    lengths = (1, 2) if batch == 32 else (4, 6)
    assert stage.seconds("auto", batch=batch) < best_fixed(stage, "good", batch, lengths) / share


SPANS = {"good": lambda text, at, rng: 0.95 if (at // 25 + text) % 4 == 0 else 0.1}


@pytest.mark.parametrize(
    ("models", "token", "lengths"), [(GOOD, 0.5e-3, (1,)), (SPANS, 0.1e-3, (1, 2, 4))], ids=["same", "spans"]
)
def test_where_rows_are_padded_the_width_is_chosen_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Right], token: float, lengths: Sequence[int]
) -> None:
    """A pass takes the time of its longest row for all 16: who drafts alone pays for the others, too."""
    prices = Prices(target=lambda tokens: 18e-3 + token * tokens, token=0.2e-3)
    stage = Stage(monkeypatch, models, prices, texts=64, padded=True)
    stage.run("auto", batch=16)
    planned = stage.clock.now
    assert planned < best_fixed(stage, "good", 16, lengths) / 0.98
    assert planned < stage.seconds("none", batch=16)


def test_interrupted_passes_end_no_drafts_where_rows_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two passes with drafts take five times as long, as beside other work."""
    drafted = [0]

    def seconds(tokens: int) -> float:
        drafted[0] += tokens > 4
        return (10e-3 + 0.2e-3 * tokens) * (5.0 if tokens > 4 and drafted[0] <= 2 else 1.0)

    Stage(monkeypatch, GOOD, Prices(target=seconds, token=0.2e-3), texts=16, padded=True).run("auto", batch=4)
    assert drafted[0] > 100


@pytest.mark.parametrize("world", [script.Stage, drawn.Stage], ids=["greedy", "drawn"])
def test_a_call_is_made_if_all_who_draft_in_it_gain_more_than_it_takes(
    monkeypatch: pytest.MonkeyPatch, world: type[script.Stage]
) -> None:
    """No request gains enough by a call of its own; with a part of it as the price, fewer and fewer call."""
    stage = world(monkeypatch, SPANS, texts=32)
    planned = stage.seconds("auto", batch=8)
    assert planned < stage.seconds("static?length=1&drafter=good", batch=8) / 0.97
    assert planned < stage.seconds("none", batch=8) / 1.03


def test_a_price_of_tokens_that_no_pass_shows_to_have_fallen_ends_no_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One token for each of 32 is free, and three, as the trial has, make the pass twice as long."""
    stage = Stage(monkeypatch, {"good": always(0.5)}, texts=96, tokens=72)
    planned = stage.seconds("auto", batch=32)
    assert planned < stage.seconds("static?length=1&drafter=good", batch=32) / 0.95


def test_a_drafter_that_is_right_in_one_half_of_the_texts_is_asked_in_that_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = {
        "first": lambda text, at, rng: 0.85 * (text < 16),
        "second": lambda text, at, rng: 0.85 * (text >= 16),
    }
    stage = Stage(monkeypatch, models, texts=32)
    _, _, rounds = stage.run("auto")
    played = [Counter(r.arm.drafter for r in rounds if (r.request < 16) == early) for early in (True, False)]
    assert played[0]["first"] > 0.9 * played[0].total() and played[0]["second"] <= 3
    assert played[1]["second"] > 0.75 * played[1].total()
    assert stage.clock.now < min(stage.seconds(f"static?length=4&drafter={name}") for name in models) / 1.3


# -- never slower than no speculation ------------------------------------------------------------------


def dear(token: float) -> dict[str, Any]:
    """Drafters whose every token takes so long, and nothing else."""
    return {"own": dict.fromkeys((*useless(4), "hostile", "dear"), Prices(start=0.0, token=token))}


@pytest.mark.parametrize(
    ("models", "options"),
    [
        (useless(1), dear(0.7e-3)),
        (useless(4), dear(0.7e-3)),
        ({"hostile": always(0.0)}, dear(0.7e-3)),
        ({"dear": always(0.5)}, dear(10e-3)),
        ({"dear": always(0.95)}, dear(10e-3)),
        # to read all of them takes as long as up to 400 passes of a batch: a new model begins with one
        (useless(4), {"prompt": 600}),
        (useless(4), {"prompt": 2000}),
        (GOOD, {"prices": Prices(target=lambda tokens: 2e-3 * tokens)}),
    ],
    ids=[
        *("useless", "four useless", "hostile text", "as expensive as the target", "expensive and right"),
        *("long prompts", "longer prompts", "all tokens of a pass cost the same"),
    ],
)
@pytest.mark.parametrize("batch", some([1, 32, 8], 2))
def test_never_below_98_hundredths_of_plain_decoding(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Right], options: dict[str, Any], batch: int
) -> None:
    stage = Stage(monkeypatch, models, texts=max(24, 3 * batch), **options)
    assert stage.seconds("auto", batch=batch) < stage.seconds("none", batch=batch) / 0.98


def test_long_prompts_are_read_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 600 tokens takes longer than a pass, for each of 8 texts; without, a text takes 200 passes."""
    stage = Stage(monkeypatch, GOOD, texts=40, prompt=600)
    best = min(speed(stage, f"static?length={n}&drafter=good", 8) for n in (3, 6))
    assert 1.9 * speed(stage, "none", 8) < best < speed(stage, "auto", 8) / 0.97


def test_reading_in_the_first_round_of_a_text_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of a known model begin there, beside the target's prefill: 600 ms, for an answer of as long."""
    prices = Prices(reading=0.1e-3)
    stage = Stage(monkeypatch, GOOD, prices, texts=8, tokens=60, prompt=6000)
    _, loop, rounds = stage.run("auto")
    assert isinstance(loop.policy, AutoPolicy)
    assert loop.policy.draft_prices[0].reading.each == pytest.approx(prices.reading, rel=0.01)
    assert {r.request for r in rounds if r.arm.length} == {0, 1}


def test_reading_is_priced_by_what_a_second_is_worth_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 ms for an answer of 50 tokens: four tokens a round without reading are no rate that is to be had."""
    stage = Stage(monkeypatch, GOOD, texts=24, tokens=50, prompt=4000)
    assert stage.seconds("auto") < best_fixed(stage, "good", 1, (4, 6)) / 0.95


def test_a_new_model_that_may_be_wrong_reads_no_further_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first drafts are priced, too: it is tried on the text that it was graded on."""
    stage = Stage(monkeypatch, {"a": always(0.5), "b": always(0.3)}, texts=24, tokens=100, prompt=2000)
    assert stage.seconds("auto") < stage.seconds("none") / 1.4


@pytest.mark.parametrize("count", [2, 8, 32])
def test_useless_drafters_cost_at_most_three_per_cent(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Of the time without them, grading included; the texts are the same."""
    alone = Stage(monkeypatch, GOOD).seconds("auto")
    among = Stage(monkeypatch, {**useless(count), **GOOD})
    _, _, rounds = among.run("auto")
    assert among.clock.now < 1.03 * alone
    graded = sum(r.seconds.grade for r in rounds)
    assert 0.0 < graded < 0.01 * among.clock.now


# -- trees ---------------------------------------------------------------------------------------------

BY_THE_TOKEN = Prices(target=lambda tokens: 5e-3 + 1e-3 * tokens, token=0.05e-3)


def test_a_tree_is_priced_by_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight nodes a depth: a tree of length 2 is as expensive as a chain of 16, and as good as one of 2."""
    stage = Stage(monkeypatch, GOOD, BY_THE_TOKEN, widths={"good": 8})
    best = min(best_fixed(stage, "good", 1, (1, 2, 3, 4)), stage.seconds("none"))
    assert stage.seconds("auto") < best / 0.97
    assert stage.seconds("auto") < stage.seconds("none") / 0.98


def test_a_chain_goes_before_a_tree_that_is_right_somewhat_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = {"chain": always(0.75), "tree": always(0.85)}
    stage = Stage(monkeypatch, models, BY_THE_TOKEN, widths={"tree": 8})
    _, _, rounds = stage.run("auto")
    played = Counter(r.arm.drafter for r in rounds)
    assert played["chain"] > 0.9 * len(rounds)
    free = Prices(target=lambda tokens: 10e-3, token=0.0)
    _, _, rounds = Stage(monkeypatch, models, free, widths={"tree": 8}).run("auto")
    assert Counter(r.arm.drafter for r in rounds)["tree"] > 0.9 * len(rounds)


def test_a_model_that_read_a_long_prompt_in_vain_is_soon_graded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first grading reads 2,000 tokens, the budget of eight texts, and it is wrong at first."""
    late = {"late": lambda text, at, rng: 0.8 * (text > 0 or at > 60)}
    stage = Stage(monkeypatch, late, texts=8, tokens=100, prompt=2000)
    _, _, rounds = stage.run("auto")
    assert sum(r.arm.length > 0 for r in rounds if r.request == 1) > 15
    assert stage.clock.now < 0.55 * stage.seconds("none")


# -- changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 8])
def test_a_load_that_makes_passes_dear_switches_drafting_off_and_on_again(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """From pass 300 to 900 every token of a pass costs as much as a pass does before and after."""
    stage = Stage(monkeypatch, GOOD, texts=24 * batch)
    flat, steps = stage.prices.target, []

    def change(loop: Loop) -> None:
        steps.append(loop)
        busy = 300 <= len(steps) < 900
        stage.prices.target = (lambda tokens: 10e-3 * tokens) if busy else flat

    _, _, rounds = stage.run("auto", batch=batch, before=change)
    drafts = [r.arm.length > 0 for r in rounds]
    stages = (drafts[100 * batch : 300 * batch], drafts[650 * batch : 900 * batch], drafts[-200 * batch :])
    before, busy, after = (sum(part) / len(part) for part in stages)
    assert before > 0.8 and busy < 0.1 and after > 0.5


def test_a_drafter_that_dies_is_left_for_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, {"best": always(0.85), "second": always(0.6)})

    def kill(loop: Loop) -> None:
        best = loop.pool.drafters["best"]
        assert isinstance(best, Model)
        best.fails_at = 3.0

    _, loop, rounds = stage.run("auto", before=kill)
    assert loop.faults["best"] == 3
    early, late = _halves(rounds, stage.clock.now / 4)
    assert early["best"] > 100 and late["best"] < 40 and late["second"] > 0.8 * late.total()


def _halves(rounds: Sequence[Round], seconds: float) -> tuple[Counter[str], Counter[str]]:
    spent, early, late = 0.0, Counter[str](), Counter[str]()
    for r in rounds:
        spent += r.seconds.total
        (early if spent < seconds else late)[r.arm.drafter] += 1
    return early, late


# -- memory --------------------------------------------------------------------------------------------


def slow(times: int, seconds: float, usual: float) -> Iterator[float]:
    """So many slow ones, then the usual ones."""
    yield from repeat(seconds, times)
    yield from repeat(usual)


class SlowCalls(Prices):
    """The first calls of the drafter take longer."""

    starts: Iterator[float]

    def __getattribute__(self, name: str) -> Any:
        return next(self.starts) if name == "start" else super().__getattribute__(name)


@pytest.mark.parametrize(("calls", "passes", "most"), [(4, 0, 1.2), (0, 4, 1.06)], ids=["drafts", "passes"])
def test_a_slow_start_does_not_keep_a_good_drafter_away_for_long(
    monkeypatch: pytest.MonkeyPatch, calls: int, passes: int, most: float
) -> None:
    """A drafter that looks too expensive is not called, and no call would show that it is not."""

    def seconds(calls: int, passes: int) -> float:
        drafted = slow(passes, 60e-3, 10e-3)
        prices = SlowCalls(lambda tokens: next(drafted) if tokens > 1 else 10e-3)
        prices.starts = slow(calls, 60e-3, 0.3e-3)
        taken = Stage(monkeypatch, GOOD, prices, texts=24).seconds("auto")
        assert next(drafted) == 10e-3 and next(prices.starts) == 0.3e-3, "all slow ones came"
        return taken

    assert seconds(calls, passes) < most * seconds(0, 0)


def test_a_machine_that_becomes_three_times_slower_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second costs three: what pays is the same as before."""
    prices = Prices()
    stage, steps = Stage(monkeypatch, GOOD, prices, texts=20), [0]
    target, token, start = prices.target, prices.token, prices.start

    def change(loop: Loop) -> None:
        steps[0] += 1
        if steps[0] == 500:
            prices.target = lambda tokens: 3.0 * target(tokens)
            prices.token, prices.start = 3.0 * token, 3.0 * start

    _, _, rounds = stage.run("auto", before=change)
    speeds = [
        sum(len(r.tokens) for r in part) / sum(r.seconds.total for r in part)
        for part in (rounds[100:499], rounds[510:])
    ]
    assert 3.0 * speeds[1] > 0.98 * speeds[0]


def test_a_drafter_that_is_useless_for_long_and_then_good_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right from the middle on: what a text takes then is what it takes where it is right from the start."""
    late = Stage(monkeypatch, {"late": lambda text, at, rng: 0.75 * (text >= 30)}, texts=60)
    early = Stage(monkeypatch, GOOD, texts=60)
    ideal = (early.seconds("auto") + late.seconds("none")) / 2
    assert late.seconds("auto") < ideal / 0.98


def test_a_batch_whose_drafter_was_unlucky_at_first_drafts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its first 112 tokens 13 are right and then every fourth: the batch rests, and then tries again."""
    stage = Stage(monkeypatch, {"drafter": always(0.25)}, texts=20, tokens=200)
    lengths = [round.arm.length for round in stage.run("auto", batch=4)[2]]
    assert not any(lengths[200:400])
    assert sum(length > 0 for length in lengths[-400:]) > 300

"""The script of docs/explanation/findings.md on a small world, whose orderings are known."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise.core.arms import Context, Decision
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.measure.trace import Trace
from draftwise.measure.trace.record import Prompt
from studies.common.tables import cell, ratio, verdict
from studies.speed import findings
from studies.speed.findings import Claim
from studies.speed.world import World, made, tuned
from tests.measure.trace.sims import COSTS, TEAM, recorded


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), n=12)


@pytest.fixture(scope="module")
def world(trace: Trace) -> World:
    return World(trace, COSTS, "sim", 1)


def test_a_ratio_is_of_total_times_over_the_same_prompts() -> None:
    second = np.array([2.0, 4.0, 6.0, 8.0, 9.0])
    assert ratio(second / 2.0, second) == pytest.approx((2.0, 2.0, 2.0))  # paired: nothing is random
    value, low, high = ratio(np.array([1.0, 9.0] * 3), np.array([9.0, 1.0] * 3))
    assert value == 1.0 and low < 0.5 and high > 2.0
    lucky = np.array([[1.0] * 5, [3.0] * 5])  # another order, another outcome
    value, low, high = ratio(lucky, np.full(5, 2.0))
    assert value == 1.0 and low == pytest.approx(2 / 3) and high == pytest.approx(2.0)
    value, low, high = ratio(np.full(4, 1.0), np.full(4, 2.0))
    assert value == 2.0 and cell(value, low, high) == "2.000 (too few prompts)"
    assert cell(1.5, 1.25, 1.75) == "1.500 (1.250 to 1.750)"
    verdicts = [verdict(*bounds) for bounds in ((1.01, 1.2), (0.8, 0.99), (0.99, 1.01), (low, high))]
    assert verdicts == ["confirmed", "reversed", "not confirmed", "no verdict"]


def test_a_worse_drafter_is_found_to_be_slower(trace: Trace) -> None:
    world = World(trace, COSTS, "sim", 2)
    good, bad = "static-3?drafter=good", "static-3?drafter=bad"
    for first, second, word in ((good, bad, "confirmed"), (bad, good, "reversed")):
        claim = Claim("one beats the other", first, second, "everyone")
        (line,) = list(findings.table([claim], [world]))[1:]
        assert line.startswith(f"| one beats the other | `{first}` |") and f"| {word}: " in line


def test_nobody_beats_what_is_known_afterwards(world: World) -> None:
    """Fixed arms replayed take what the walk says, and the oracle no more than the best of them."""
    ran = world.run("static-4?drafter=good")
    assert ran.seconds[0] == pytest.approx(world.fixed["good", 4])
    name, best = world.best_fixed(["good"], range(1, 9))
    assert name.startswith("good ") and best.sum() <= ran.seconds.sum()
    assert world.exact("good").sum() < best.sum() * 1.2
    assert ran.mean_accepted > world.run("static-4?drafter=bad").mean_accepted
    side = findings.otherwise(world)
    assert side.seconds.sum() < world.run("none").seconds.sum()
    assert "ngram" in side.detail or "suffix" in side.detail
    one = world.run("static-1?drafter=good")  # half of the share of the longest draft, half of its own
    assert one.mean_value == pytest.approx(one.mean_accepted * (1 / 8 + 1) / 2)


def test_a_classifier_of_discos_kind_stops_as_it_says(world: World) -> None:
    """Without a threshold it is the longest draft, with 1 one token; F1 counts tokens."""
    of: Any = world.classified
    assert of.seconds(COSTS, 0.0) == pytest.approx(world.fixed["good", 8])
    assert of.seconds(COSTS, 1.1) == pytest.approx(world.fixed["good", 1])
    assert of.seconds(COSTS, 0.5).sum() < world.fixed["good", 8].sum()
    yes = partial(findings.static_yes, [each[1].shape for each in of.drafts], 8)
    right = sum(int((known & right).sum()) for _, right, known in of.drafts)
    wrong = sum(int((known & ~right).sum()) for _, right, known in of.drafts)
    assert of.scores(yes)[0] == pytest.approx(2 * right / (2 * right + wrong))
    value, draws = of.scores(lambda i: of.chances[i] > 0.5)
    assert draws.min() <= value <= draws.max() and value > 0.5


def test_orders_and_seeds_are_averaged(world: World, trace: Trace) -> None:
    """A policy that draws differs from order to order; one that does not, and keeps nothing, does not."""
    thrice = World(trace, COSTS, "sim", 3)
    drawn = thrice.run("metasd-exp3", TEAM).seconds
    assert drawn.shape == (3, 12) and (drawn[0] != drawn[1]).any()
    assert (drawn[0] == world.run("metasd-exp3", TEAM).seconds[0]).all()
    assert np.ptp(thrice.run("static-3").seconds, axis=0) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("name", "arms", "moving"),
    [("thresholds", 15, (0.45, 0.6, 0.75)), ("appendix", 7, (0.6,)), ("published", 11, (0.3, 0.6, 0.9))],
)
def test_more_thresholds_have_an_adaedl_that_moves(name: str, arms: int, moving: tuple[float, ...]) -> None:
    policy: Any = made(name, ["good"], 128).policy
    assert len(policy.arms) == arms and {arm.length for arm in policy.arms} == {128}
    first, *others = (at for at, arm in enumerate(policy.arms) if arm.stop.rule == "adaedl")
    policy.choose(Context(request=1), Random(0))
    outcome = Outcome(first, drafted=4, accepted=0, reward=0.0)
    policy.learn(Feedback(1, Decision(first, 1.0, policy.arms[first].stops), (outcome,)))
    assert policy.moving[first].stop.threshold > moving[0]
    assert [policy.moving[at].stop.threshold for at in others] == pytest.approx(list(moving[1:]))


def test_tables_are_made_of_one_paper_or_of_all(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(trace.folder)
    words = ["findings", "--trace", folder, "--specialists", folder, "--orders", "1", "--costs", "c=0.1"]
    for only in (["--only", "TapIn"], ["--only", "DISCO"], []):
        monkeypatch.setattr(sys, "argv", [*words, *only])
        if "TapIn" in only:
            with pytest.raises(SystemExit):
                findings.main()
            assert "--only TapIn: choose from TapOut" in capsys.readouterr().err
            continue
        findings.main()
        lines = capsys.readouterr().out.splitlines()
        titles = [line[3:] for line in lines if line.startswith("## ")]
        assert not only or titles == ["DISCO"]
    papers = ["TapOut", "DISCO", "BanditSpec", "Practice", "BanditSpec, with specialists", "MetaSD"]
    assert titles == [*papers, "HedgeSpec"]
    verdicts = ("| confirmed: ", "| not confirmed: ", "| reversed: ")
    rows = [line for line in lines if any(verdict in line for verdict in verdicts)]
    assert len(rows) == 72 and all(row.count("|") == 6 for row in rows)
    assert sum("block divergence beats" in row for row in rows) == 3  # of a trace with overlaps
    assert sum(line.startswith("- `metasd-ucb") for line in lines) == 1
    for reward in ("efficiency", "divergence"):
        assert sum(line.startswith(f"- `bad`, block-{reward}: mean 0.") for line in lines) == 1


def test_block_divergence_is_never_zero(trace: Trace) -> None:
    """Of a drafter that is right at some places."""
    world = World(trace, COSTS, "sim", 1)
    for name in world.models:
        for efficiency, divergence in world.rewards(name):
            assert efficiency.shape == divergence.shape
            assert (divergence > 0).all() and (efficiency <= 1).all()
    world.models = ["bad", *world.models]
    *_, last = findings.exploration(world)
    assert last.startswith(f"| {trace.header.length} | ") and last.endswith(" % |")


def test_what_is_tuned_on_one_half_is_measured_on_the_other() -> None:
    """Each of two methods is best on one half: tuning takes the one that is worse where it is measured."""
    tried = {"a": np.array([[1.0, 5.0, 1.0, 5.0]] * 3), "b": np.array([[4.0, 2.0, 4.0, 2.0]] * 3)}
    name, seconds = tuned(tried)
    assert name == "b and a" and (seconds == np.array([4.0, 5.0, 4.0, 5.0])).all()


def test_a_perfect_router_plays_each_categorys_own_model(tmp_path: Path) -> None:
    asked = [Prompt(str(i), "bad" if i % 2 else "elsewhere", [1, 2, 3, i]) for i in range(6)]
    world = World(recorded(tmp_path / "trace", asked=asked), COSTS, "sim", 1)
    seconds = findings.own(world).seconds
    for i in range(6):  # where no model has the category's name, the generalist plays
        assert seconds[i] == world.fixed["bad" if i % 2 else "good", 5][i]
    assert world.fixed["bad", 5].sum() > world.fixed["good", 5].sum()

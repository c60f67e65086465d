"""The script of docs/explanation/findings.md on a small world, whose orderings are known."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np
import pytest

from draftwise.core.arms import Context, Decision
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.measure.trace import Trace
from draftwise.measure.trace.record import Prompt
from draftwise.policies.arms import tapout_rules
from tests.measure.trace.sims import COSTS, TEAM, recorded


@pytest.fixture(scope="module")
def findings() -> ModuleType:
    return importlib.import_module("studies.speed.findings")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("trace"), n=12)


def test_a_ratio_is_of_total_times_over_the_same_prompts(findings: ModuleType) -> None:
    second = np.array([2.0, 4.0, 6.0, 8.0, 9.0])
    assert findings.ratio(second / 2.0, second) == pytest.approx((2.0, 2.0, 2.0))  # paired: nothing is random
    value, low, high = findings.ratio(np.array([1.0, 9.0] * 3), np.array([9.0, 1.0] * 3))
    assert value == 1.0 and low < 0.5 and high > 2.0
    lucky = np.array([[1.0] * 5, [3.0] * 5])  # another order, another outcome
    value, low, high = findings.ratio(lucky, np.full(5, 2.0))
    assert value == 1.0 and low == pytest.approx(2 / 3) and high == pytest.approx(2.0)
    assert findings.verdict(1.01, 1.2) == "confirmed"
    assert findings.verdict(0.8, 0.99) == "reversed"
    assert findings.verdict(0.99, 1.01) == "not confirmed"


def test_fewer_than_five_prompts_have_no_interval(findings: ModuleType) -> None:
    value, low, high = findings.ratio(np.full(4, 1.0), np.full(4, 2.0))
    assert value == 2.0 and np.isnan(low) and np.isnan(high)
    assert findings.verdict(low, high) == "no verdict"
    assert findings.cell(value, low, high) == "2.000 (too few prompts)"
    assert findings.cell(1.5, 1.25, 1.75) == "1.500 (1.250 to 1.750)"


def test_a_worse_drafter_is_found_to_be_slower(findings: ModuleType, trace: Trace) -> None:
    world = findings.World(trace, COSTS, "sim", 2)
    good, bad = (findings.policy(f"static-3?drafter={name}", findings.everyone) for name in ("good", "bad"))
    (line,) = list(findings.table([findings.Claim("good beats bad", good, bad)], [world]))[2:]
    assert "| confirmed: " in line and line.startswith("| good beats bad | `static-3?drafter=good` |")
    (line,) = list(findings.table([findings.Claim("bad beats good", bad, good)], [world]))[2:]
    assert "| reversed: " in line


def test_nobody_beats_what_is_known_afterwards(findings: ModuleType, trace: Trace) -> None:
    """Fixed arms replayed take what the walk says, and the oracle no more than the best of them."""
    world = findings.World(trace, COSTS, "sim", 1)
    ran = world.run("static-4?drafter=good")
    assert ran.seconds[0] == pytest.approx(world.fixed["good", 4])
    name, best = world.best_fixed(["good"], range(1, 9))
    assert name.startswith("good ") and best.sum() <= ran.seconds.sum()
    assert world.exact("good").sum() < best.sum() * 1.2
    assert ran.mean_accepted > world.run("static-4?drafter=bad").mean_accepted


def test_a_classifier_of_discos_kind_stops_as_it_says(findings: ModuleType, trace: Trace) -> None:
    """Without a threshold it it is the longest draft, with 1 one token; F1 counts tokens."""
    world = findings.World(trace, COSTS, "sim", 1)
    of = world.classified
    assert of.seconds(COSTS, 0.0) == pytest.approx(world.fixed["good", 8])
    assert of.seconds(COSTS, 1.1) == pytest.approx(world.fixed["good", 1])
    assert of.seconds(COSTS, 0.5).sum() < world.fixed["good", 8].sum()
    yes = partial(findings.static_yes, [each[1].shape for each in of.drafts], 8)
    right = sum(int((known & right).sum()) for _, right, known in of.drafts)
    wrong = sum(int((known & ~right).sum()) for _, right, known in of.drafts)
    assert of.scores(yes)[0] == pytest.approx(2 * right / (2 * right + wrong))
    value, draws = of.scores(lambda i: of.chances[i] > 0.5)
    assert draws.min() <= value <= draws.max() and value > 0.5


def test_orders_and_seeds_are_averaged(findings: ModuleType, trace: Trace) -> None:
    """A policy that draws differs from order to order; one that does not, and keeps nothing, does not."""
    once, thrice = (findings.World(trace, COSTS, "sim", n) for n in (1, 3))
    drawn = thrice.run("metasd-exp3", TEAM).seconds
    assert drawn.shape == (3, 12) and (drawn[0] != drawn[1]).any()
    assert (drawn[0] == once.run("metasd-exp3", TEAM).seconds[0]).all()
    assert np.ptp(thrice.run("static-3").seconds, axis=0) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("name", "arms", "moving"),
    [("thresholds", 15, (0.45, 0.6, 0.75)), ("appendix", 7, (0.6,)), ("published", 11, (0.3, 0.6, 0.9))],
)
def test_more_thresholds_have_an_adaedl_that_moves(
    findings: ModuleType, name: str, arms: int, moving: tuple[float, ...]
) -> None:
    policy = findings.made(name, ["good"], 128).policy
    assert len(policy.arms) == arms and {arm.length for arm in policy.arms} == {128}
    adaedl = [at for at, arm in enumerate(policy.arms) if arm.stop.rule == "adaedl"]
    assert [policy.moving[at].stop.threshold for at in adaedl] == pytest.approx(moving)
    assert [at for at, moved in enumerate(policy.moving) if moved] == adaedl
    first = adaedl[0]
    policy.choose(Context(request=1), Random(0))
    outcome = Outcome(first, drafted=4, accepted=0, reward=0.0)
    policy.learn(Feedback(1, Decision(first, 1.0, policy.arms[first].stops), (outcome,)))
    after = [policy.moving[at].stop.threshold for at in adaedl]
    assert after[0] > moving[0] and after[1:] == pytest.approx(moving[1:])


def test_the_papers_own_thresholds_are_among_those_in_print(findings: ModuleType) -> None:
    for rule in tapout_rules():
        assert rule.threshold in findings.PUBLISHED[rule.rule]
    assert findings.APPENDIX["svip"] == (0.2, 0.4, 0.6)


def test_one_papers_table_alone(
    findings: ModuleType, trace: Trace, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--costs", "c=0.1", "--longest", "5", "--only", "TapOut"]
    sys.argv = ["findings", "--trace", str(trace.folder), "--orders", "1", *words]
    findings.main()
    shown = capsys.readouterr().out
    titles = [line for line in shown.splitlines() if line.startswith("## ")]
    assert titles == ["## TapOut"] and "`tapout-seq-ucb1?length=5`" in shown
    sys.argv[-1] = "TapIn"
    with pytest.raises(SystemExit):
        findings.main()
    assert "--only TapIn: choose from TapOut" in capsys.readouterr().err


def test_all_tables_are_made(findings: ModuleType, trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(trace.folder)
    sys.argv = ["findings", "--trace", folder, "--specialists", folder, "--orders", "1", "--costs", "c=0.1"]
    findings.main()
    lines = capsys.readouterr().out.splitlines()
    titles = [line[3:] for line in lines if line.startswith("## ")]
    papers = [
        "TapOut",
        "DISCO",
        "BanditSpec",
        "Practice",
        "BanditSpec, with specialists",
        "MetaSD",
        "HedgeSpec",
    ]
    assert titles == papers
    verdicts = ("| confirmed: ", "| not confirmed: ", "| reversed: ")
    rows = [line for line in lines if any(verdict in line for verdict in verdicts)]
    assert len(rows) == 72 and all(row.count("|") == 6 for row in rows)
    assert sum("block divergence beats" in row for row in rows) == 3  # of a trace with overlaps
    assert sum(line.startswith("- `metasd-ucb") for line in lines) == 1
    for reward in ("efficiency", "divergence"):
        assert sum(line.startswith(f"- `bad`, block-{reward}: mean 0.") for line in lines) == 1


def test_rewards_of_the_same_drafters_by_block_divergence_tell_more(
    findings: ModuleType, trace: Trace
) -> None:
    """A drafter that is right at some places: block efficiency is zero at the others, divergence never."""
    world = findings.World(trace, COSTS, "sim", 1)
    for name in world.models:
        for efficiency, divergence in world.rewards(name):
            assert efficiency.shape == divergence.shape
            assert (divergence > 0).all() and (efficiency <= 1).all()
    world.models = ["bad", *world.models]
    *_, last = findings.exploration(world)
    assert last.startswith(f"| {trace.header.length} | ") and last.endswith(" % |")


def test_what_is_tuned_on_one_half_is_measured_on_the_other(findings: ModuleType) -> None:
    """Each of two methods is best on one half: tuning takes the one that is worse where it is measured."""
    tried = {"a": np.array([1.0, 5.0, 1.0, 5.0]), "b": np.array([[4.0, 2.0, 4.0, 2.0]] * 3)}
    name, seconds = findings.tuned({"a": np.broadcast_to(tried["a"], (3, 4)), "b": tried["b"]})
    assert name == "b and a" and (seconds == np.array([4.0, 5.0, 4.0, 5.0])).all()


def test_a_perfect_router_plays_each_categorys_own_model(findings: ModuleType, tmp_path: Path) -> None:
    asked = [Prompt(str(i), "bad" if i % 2 else "elsewhere", [1, 2, 3, i]) for i in range(6)]
    world = findings.World(recorded(tmp_path / "trace", asked=asked), COSTS, "sim", 1)
    seconds = findings.own(world).seconds
    for i in range(6):  # where no model has the category's name, the generalist plays
        assert seconds[i] == world.fixed["bad" if i % 2 else "good", 5][i]
    assert world.fixed["bad", 5].sum() > world.fixed["good", 5].sum()


def test_lookup_else_model_is_a_side(findings: ModuleType, trace: Trace) -> None:
    world = findings.World(trace, COSTS, "sim", 1)
    side = findings.otherwise(world)
    assert side.seconds.shape == (12,) and ("ngram" in side.detail or "suffix" in side.detail)
    plain = world.run("none").seconds
    assert side.seconds.sum() < plain.sum()


def test_the_mean_value_is_tapouts_blended_reward(findings: ModuleType, trace: Trace) -> None:
    """Of drafts of one token it is half of the share accepted of the longest draft, and half of the share."""
    ran = findings.World(trace, COSTS, "sim", 1).run("static-1?drafter=good")
    assert ran.mean_value == pytest.approx(ran.mean_accepted * (1 / 8 + 1) / 2)


def test_arms_are_listed_by_value_with_their_time_in_one_order(findings: ModuleType, trace: Trace) -> None:
    rows = list(findings.arm_values(findings.World(trace, COSTS, "sim", 3)))[1:]
    values, times = zip(*((float(row.split("|")[2]), float(row.split("|")[3])) for row in rows), strict=True)
    assert len(rows) == 5 and list(values) == sorted(values, reverse=True)
    assert min(times) == 1.0 and max(times) < 2.0

"""`draftwise simulate`: what is simulated is what was asked for, and the tables tell it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise.measure.simulate import Player, SimArm, Stationary, Text, World, count_rounds, play, study
from draftwise.policies.learners.ucb import UCB1

from .conftest import Refused, Run


@pytest.fixture
def simulated(run: Run) -> Callable[..., dict[str, Any]]:
    """Run `draftwise simulate --json` on little; gives what it prints."""

    def simulated(*options: str) -> dict[str, Any]:
        status, out, err = run("simulate", "--json", "--tokens", "300", "--seeds", "3", *options)
        assert (status, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    return simulated


def policy(found: dict[str, Any], name: str) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in found["policies"] if row["policy"] == name)
    return row


def test_the_tables(run: Run) -> None:
    status, out, err = run("simulate", "--policies", "ucb1,random", "--tokens", "500", "--seeds", "3")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["policy", "rounds"]
    assert {lines[1].split()[0], lines[2].split()[0]} == {"ucb1", "random"}
    assert [line.split()[0] for line in lines[4:8]] == ["arm", "drafter-1:5", "drafter-2:5", "drafter-3:5"]
    assert "±" in lines[1] and "±: one standard error over the seeds" in lines


def test_rounds_and_seconds_are_those_of_playing_the_learner() -> None:
    arms = (SimArm(0, 4, 0.1), SimArm(1, 2, 0.02))
    world = World(acceptance=Stationary([0.8, 0.5]), arms=arms, tokens=(200,))
    found = study([Player("ucb1", UCB1)], world, seeds=1)
    text = Text.draw(world.acceptance, arms, 200, rng=Random(0))
    played, accepted = play(UCB1(2), text, rng=Random(10_000))
    seconds = np.array([arm.seconds for arm in arms])
    row = policy(found, "ucb1")
    assert (row["rounds"], row["seconds"]) == (len(played), pytest.approx(seconds[played].sum()))
    assert row["pulls"] == np.bincount(played, minlength=2).tolist()
    assert row["switches"] == np.count_nonzero(np.diff(played))
    alone = np.array([count_rounds([text], arm) for arm in (0, 1)])
    assert row["rounds_regret"][-1] == len(played) - alone[:, -1].min()
    assert row["seconds_regret"][-1] == pytest.approx(row["seconds"] - (alone[:, -1] * seconds).min())
    reached = int(np.searchsorted(np.cumsum(accepted.astype(int) + 1), 100)) + 1
    assert row["rounds_regret"][19] == reached - alone[0, 99]
    assert [arm["rounds"] for arm in found["arms"]] == alone[:, -1].tolist()


def test_a_curve_over_several_texts_adds_up_their_rounds() -> None:
    arms = (SimArm(0, 3), SimArm(1, 3))
    world = World(acceptance=Stationary([1.0, 0.0]), arms=arms, tokens=(8, 8))
    found = study([Player("ucb1", UCB1, keep=True), Player("fresh", UCB1)], world, seeds=1)
    assert found["marks"] == list(range(1, 17))
    assert [arm["rounds"] for arm in found["arms"]] == [4, 16]
    assert [sum(row["pulls"]) for row in found["policies"]] == [row["rounds"] for row in found["policies"]]
    kept, fresh = found["policies"]
    assert fresh["pulls"][1] > kept["pulls"][1]  # it looks at the bad arm in each text again


def test_the_best_arm_follows_the_phases(simulated: Callable[..., dict[str, Any]]) -> None:
    drifting = ("--drift", "phases", "--every", "150", "--chances", "0.95,0.1/0.1,0.95")
    row = policy(simulated("--policies", "ucb1,random", *drifting), "random")
    assert row["best_choices"] == pytest.approx(0.5, abs=0.2)
    assert row["best_share"][5] is not None
    still = simulated("--policies", "ucb1", "--chances", "0.95,0.1")
    assert policy(still, "ucb1")["best_share"][-1] > 0.6


def test_drafters_lengths_and_costs_make_the_arms(simulated: Callable[..., dict[str, Any]]) -> None:
    found = simulated("--policies", "ucb1", "--drafters", "2", "--lengths", "0,1,4", "--costs", "0.1,0.5")
    assert [arm["name"] for arm in found["arms"]] == [
        "none",
        *(f"drafter-{d}:{n}" for d in (1, 2) for n in (1, 4)),
    ]
    assert [arm["seconds"] for arm in found["arms"]] == pytest.approx([1.0, 1.1, 1.4, 1.5, 3.0])
    assert found["arms"][0]["rounds"] == 300
    assert found["settings"]["chances"] == [[0.8, 0.4]]


def test_scope_delay_and_reward_change_what_is_learnt(simulated: Callable[..., dict[str, Any]]) -> None:
    base = ("--policies", "ucb1,ucb1?per_query=true", "--texts", "3")
    plain = simulated(*base)
    assert policy(plain, "ucb1")["pulls"] != policy(plain, "ucb1?per_query=true")["pulls"]
    assert simulated(*base) == plain
    assert simulated(*base, "--delay", "7")["policies"] != plain["policies"]
    costly = ("--costs", "0.5", "--lengths", "1,8")
    by_tokens, by_rate = (simulated(*base, *costly, "--reward", name) for name in ("accepted", "rate"))
    assert policy(by_rate, "ucb1")["seconds"] < policy(by_tokens, "ucb1")["seconds"]


def test_the_default_reward_counts_the_price_where_lengths_differ(
    simulated: Callable[..., dict[str, Any]],
) -> None:
    """Accepted tokens alone would favour the longest draft, whatever it costs."""
    for lengths, reward in (("5", "accepted"), ("1,8", "rate"), ("0,5", "rate")):
        asked = ("--policies", "ucb1", "--lengths", lengths, "--costs", "0.5")
        assert simulated(*asked)["policies"] == simulated(*asked, "--reward", reward)["policies"]


@pytest.mark.parametrize("drift", ["texts", "runs"])
def test_every_drift_runs_every_policy_by_default(
    drift: str, simulated: Callable[..., dict[str, Any]]
) -> None:
    found = simulated("--drift", drift, "--texts", "2", "--every", "40", "--reward", "blended")
    assert len(found["policies"]) == 8
    assert all(row["rounds"] > 0 for row in found["policies"])


def test_a_comma_inside_an_option_separates_no_policies(simulated: Callable[..., dict[str, Any]]) -> None:
    found = simulated("--policies", "ucb1?arms=lengths&lengths=2,8,random")
    assert [row["policy"] for row in found["policies"]] == ["ucb1?arms=lengths&lengths=2,8", "random"]


def test_the_report(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "new"
    status, said, _ = run("simulate", "--policies", "ucb1,ucbspec,random", "--seeds", "2", "--out", str(out))
    assert (status, said.splitlines()[-1]) == (0, f"{out}/report.html")
    pictures = {path.name for path in (out / "pictures").iterdir()}
    assert pictures == {"simulated-regret.png", "simulated-best.png", "simulated-pulls.png"}
    text = (out / "report.html").read_text()
    assert "Simulated learning" in text
    assert "least regret (seconds)" in text
    assert "Pictures without data" not in text


@pytest.mark.parametrize(
    "options, said",
    [
        (("--policies", "nope"), "unknown policy 'nope'"),
        (("--policies", "ucb1,,random"), "give A,B"),
        (("--policies", "ucb1,random,ucb1"), "ucb1 is repeated"),
        (("--policies", "metasd-petc?constant=1e308"), "constant=1e308: give 0 to 1e+06"),
        (("--drafters", "1000", "--tokens", "10000000"), "--tokens 10000000 in --texts 1 for 1000 arms"),
        (("--lengths", "251"), "--lengths 251: give finite numbers from 0 to 250"),
        (("--policies", "static-3"), "no learner over arms"),
        (("--policies", "draft-all"), "no learner over arms"),
        (("--policies", "hedgespec?play=best"), "leave play=best out"),
        (("--drift", "sometimes"), "choose from none"),
        (("--drift", "phases", "--chances", "0.5"), "separate phases"),
        (("--drift", "runs", "--chances", "0.5/0.4/0.3"), "give two, easy/hard"),
        (("--chances", "0.5,x"), "give comma-separated numbers"),
        (("--chances", "0.5,0.4/0.3"), "the same number of drafters"),
        (("--chances", "1.5"), "from 0 to 1"),
        (("--drafters", "0"), "Invalid value for '--drafters'"),
        (("--lengths", "2.5"), "whole numbers"),
        (("--costs", "0.1,0.2"), "one for each of 3"),
        (("--reward", "fame"), "choose from auto, accepted"),
        (("--costs", "nan"), "finite numbers of at least 0"),
    ],
)
def test_bad_settings_are_named(options: tuple[str, ...], said: str, refused: Refused) -> None:
    assert said in refused("simulate", *options)

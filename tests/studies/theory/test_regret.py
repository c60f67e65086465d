"""The curves of regret in docs/explanation/theory.md, small: each fails if the learners change places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.common.plot import save
from studies.theory import commit, drafters, length, million, switching
from studies.theory.measure import SHAPES, doublings, exponent, fit, spread

MARKS = doublings(9, 15)


def test_fits_know_the_shapes() -> None:
    x = doublings(4, 10)
    for shape, f in SHAPES.items():
        r2, slope = fit(x, 5.0 + 3.0 * f(np.array(x, dtype=float)), shape)
        assert [r2, slope] == pytest.approx([1.0, 3.0])
        assert all(fit(x, f(np.array(x, dtype=float)), other)[0] < 0.98 for other in SHAPES if other != shape)
    assert exponent([1, 4, 16], [7, 14, 28]) == pytest.approx(0.5)
    assert spread(np.array([[1.0], [3.0]])) == pytest.approx([1.0])


def test_confident_learners_grow_like_the_logarithm_of_the_length() -> None:
    for name, regret in length.on_clear_arms(length.CONFIDENT, MARKS, 5).items():
        mean = regret.mean(axis=0)
        r2 = {shape: fit(MARKS, mean, shape)[0] for shape in SHAPES}
        assert max(r2, key=lambda shape: r2[shape]) == "log", (name, r2)
        assert r2["log"] > 0.97
        assert length.locked(regret, MARKS[-1]) == 0


def test_the_published_strength_locks_onto_wrong_arms_at_times() -> None:
    regret = length.on_clear_arms(length.PUBLISHED, MARKS[:-1], 40)["MetaSD-UCB, 0.01"]
    assert 0.05 < length.locked(regret, MARKS[-2]) < 0.5
    mean = regret.mean(axis=0)
    assert fit(MARKS[:-1], mean, "linear")[0] > 0.99
    assert exponent(MARKS[:-1], mean) > 0.85


def test_at_the_hardest_lead_regret_grows_like_the_square_root() -> None:
    marks = doublings(9, 13)
    mean = length.on_hard_arms(length.LOSSES, marks, texts=24)["EXP3Spec"]
    assert 0.3 < exponent(marks, mean) < 0.75


def test_the_adversary_of_ucb1_catches_ucb1_alone() -> None:
    regret = length.against(length.CAUGHT, doublings(9, 12))
    assert exponent(doublings(9, 12), regret["UCB1"][0]) == pytest.approx(1.0, abs=0.02)
    assert regret["EXP3Spec"][0, -1] < regret["UCB1"][0, -1] / 4


def test_bandits_pay_for_every_drafter_and_full_information_hardly() -> None:
    counts = (2, 6, 18)
    bandits = drafters.by_count(drafters.BANDITS, counts, tokens=8192, texts=2)
    experts = drafters.by_count(drafters.EXPERTS, counts, tokens=8192, texts=4)
    added = {name: float(np.ptp(values.mean(axis=0))) for name, values in (bandits | experts).items()}
    for name in drafters.BANDITS:
        assert exponent(counts, bandits[name].mean(axis=0)) > 0.85, name
        assert all(added[name] > 5 * added[expert] for expert in drafters.EXPERTS), name
    assert exponent(counts, experts["Hedge"].mean(axis=0)) < 0.8
    assert experts["NormalHedge"].mean(axis=0)[-1] < 15


def test_discount_and_window_are_the_published_formulas() -> None:
    assert switching.discount(16, 10_000) == pytest.approx(0.99)
    # 2 sqrt(10000 * 9.21034 / 16)
    assert switching.window(16, 10_000) == 152


def test_forgetting_wins_where_specialists_come_and_go() -> None:
    found = switching.behind_the_best(switching.SPECIALISTS, 40_000, 7, texts=1)
    behind = {name: float(rounds.mean()) for name, rounds in found.items()}
    for forgetful in ("discounted UCB", "sliding-window UCB"):
        assert behind[forgetful] < 0.8 * behind["UCB1"]
        assert behind[forgetful] < 0.8 * behind["UCB-Tuned"]
    assert min(behind, key=lambda name: behind[name]) == "NormalHedge, same discount"


def test_forgetting_does_not_win_where_drafters_take_turns() -> None:
    found = switching.behind_the_best(switching.TURNS, 40_000, 7, texts=1)
    assert found["UCB1"].mean() < found["sliding-window UCB"].mean() / 2
    assert found["sliding-window UCB"].mean() < found["best fixed arm"].mean() / 2


def test_explore_then_commit_hardly_switches() -> None:
    short, long = commit.switches(512, 8), commit.switches(4096, 8)
    for name in ("UCB1", "UCBSpec", "UCB-Tuned", "Gaussian Thompson", "EXP3Spec", "sequential halving"):
        assert long["explore then commit"][0] < long[name][0], name
        assert long["explore then commit"][1] < long[name][1], name
    assert long["explore then commit"][0] < 1.3 * short["explore then commit"][0]
    assert long["UCB1"][0] > 2 * short["UCB1"][0]
    # more exploring costs no more switches, and finds the best arm more often
    assert long["explore then commit, c = 32"][0] < 1.3 * long["explore then commit"][0]
    assert long["explore then commit, c = 32"][2] < long["explore then commit"][2]


def test_a_million_rounds_are_timed_for_every_learner() -> None:
    for kind in million.LEARNERS:
        assert len(million.fifths(kind(2), 10, 2, tokens=50)) == 5


def pictures() -> dict[str, Callable[[], Any]]:
    counts, some = (2, 4), (256, 512)
    regret = {"a": np.ones((2, 2))}
    worlds = {"b": [dict.fromkeys("xyz", np.ones(2))] * len(switching.CHANGES)}
    switches = [dict.fromkeys("xyz", np.ones(3))] * 2
    return {
        "length": lambda: length.draw(some, regret, some, {"a": np.ones(2)}),
        "drafters": lambda: drafters.draw(counts, regret, regret),
        "switching": lambda: switching.draw(worlds),
        "commit": lambda: commit.draw(some, switches, 1),
    }


@pytest.mark.parametrize("name", list(pictures()))
def test_pictures_are_drawn(name: str, tmp_path: Path) -> None:
    save(pictures()[name](), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")

"""Costs: profiles, files, and what is fitted from live rounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftwise.errors import UserError
from draftwise.measure.trace import Costs, DrafterCosts, profiles, read_costs
from draftwise.measure.trace.costs import busy, costs_json, fit, interpolate, measure_costs, rising
from tests.measure.trace.sims import COSTS, prompts, settings, target, team


def test_the_published_figures_are_there() -> None:
    """HedgeSpec (arXiv 2510.20064): 75.7 ms a target forward, 2.5 ms an EAGLE forward."""
    assert profiles() == [
        "llama-70b-1b",
        "llama-8b-1b",
        "llama-8b-eagle",
        "starcoder-15b-168m",
        "vicuna-13b-68m",
    ]
    costs = read_costs("llama-8b-eagle")
    assert costs.target(1) == costs.target(9) == 0.0757
    assert costs.of("any/model").draft(4) == pytest.approx(0.010)
    assert costs.of("ngram?max=3").draft(4) == costs.of("retrieval:PATH").draft(1) == 0.0


def test_a_ratio_is_enough() -> None:
    costs = read_costs("c=0.05")
    assert costs.target(6) + costs.of("model").draft(5) == pytest.approx(1.25)


def test_passes_go_on_along_their_last_line() -> None:
    assert [Costs(passes=(1.0, 1.5)).target(n) for n in (1, 2, 4)] == [1.0, 1.5, 2.5]
    assert Costs(passes=(2.0,)).target(7) == 2.0


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs_json(COSTS)))
    assert read_costs(str(path)) == COSTS


def test_passes_that_seem_shorter_by_chance_are_as_long_as_those_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs_json(Costs(passes=(1.0, 2.02, 2.0, 3.0)))))
    assert read_costs(str(path)).passes == pytest.approx((1.0, 2.01, 2.01, 3.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no draftwise-costs of version 1"),
        ("[1]", "no draftwise-costs"),
        ("nonsense", "Expecting value"),
        ('{"passes": []}', "seconds of a target pass"),
        ('{"passes": [2, 1]}', "never shorter"),
        ('{"passes": [1], "drafters": {"a": {"step": -1}}}', "0 or more"),
        ('{"passes": [1], "drafters": {"a": {"stride": 1}}}', "stride"),
        ('{"passes": ["x"]}', "give seconds"),
        ('{"passes": [1], "learn": NaN}', "0 or more"),
        ('{"passes": [1], "lear": 1}', "'lear' is not known"),
        ('{"passes": 1}', "iterable"),
        ('{"passes": [1], "machine": 3}', "not iterable"),
        ('{"passes": [1], "load": [3]}', "attribute"),
        ('{"passes": [1], "load": [{"others": "many"}]}', "give seconds"),
        ('{"passes": [1], "drafters": [1]}', "attribute"),
    ],
)
def test_broken_files_are_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    try:
        found = json.loads(text)
        text = json.dumps({"format": "draftwise-costs", "version": 1} | found) if found else text
    except (ValueError, TypeError):
        pass
    path.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        read_costs(str(path))
    assert "\n" not in str(caught.value) and "choose from llama-70b-1b, llama-8b-1b" in str(caught.value)


def test_no_such_costs() -> None:
    with pytest.raises(UserError, match=r"No such file.*choose from llama-70b-1b, llama-8b-1b"):
        read_costs("nowhere.json")
    with pytest.raises(UserError, match="give seconds"):
        read_costs("c=much")


def test_rising_numbers() -> None:
    assert rising([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
    assert rising([1.0, 4.0, 2.0, 5.0]) == [1.0, 3.0, 3.0, 5.0]


def test_passes_are_medians_with_lines_between() -> None:
    assert interpolate({1: [1.0, 9.0, 1.0], 3: [2.0], 5: [1.5]}, 6) == [1.0, 1.375, 1.75, 1.75, 1.75, 1.75]


def test_the_fit_finds_the_line_through_noise_and_outliers() -> None:
    draw = np.random.default_rng(0)
    rows = [
        (int(n), int(late), 0.01 + 0.002 * n + 0.0001 * late + 1e-5 * draw.normal())
        for n, late in zip(draw.integers(0, 9, 80), draw.integers(1, 300, 80), strict=True)
    ]
    rows += [(3, 10, 5.0), (1, 2, 2.0)]
    found = fit(rows, grade=0.5, reads=True)
    wanted = DrafterCosts(first=0.01, step=0.002, catch_up=0.0001, grade=0.5)
    for key in ("first", "step", "catch_up", "grade"):
        assert getattr(found, key) == pytest.approx(getattr(wanted, key), rel=0.05)
    assert fit(rows, grade=0.0, reads=False).catch_up == 0.0


def test_measuring_names_every_drafter() -> None:
    texts = [p.tokens for p in prompts(3)]
    counts: list[tuple[int, int]] = []
    models, drafters = target(), team("good", "ngram")
    costs = measure_costs(
        models, drafters, texts, settings(20), length=4, progress=lambda *row: counts.append(row)
    )
    assert counts[0][0] == 0 and counts[-1][0] == counts[-1][1], "from the start to the end"
    assert len(costs.passes) == 5 and list(costs.passes) == sorted(costs.passes)
    assert set(costs.drafters) == {"good", "ngram"}
    assert costs.of("good").step > 0.0 and costs.of("good").grade > 0.0 == costs.of("ngram").grade
    assert measure_costs(target(), {}, texts, settings(20), length=4).drafters == {}


def test_costs_of_texts_of_one_token_are_measured_too() -> None:
    """Such a text has no round but the first, which includes the prefill."""
    costs = measure_costs(target(), team("good"), [p.tokens for p in prompts(2)], settings(1), length=2)
    assert len(costs.passes) == 3 and costs.of("good").step > 0.0


def test_costs_remember_how_busy_their_machine_was(tmp_path: Path) -> None:
    noted = ({"start": 1.5}, {"load": 1.0, "others": 0.8, "over": 4.0})
    costs = replace(COSTS, source="measured", machine={"cores": 2, "cpu": "a laptop"}, load=noted)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs_json(costs)))
    assert read_costs(str(path)) == costs
    why = ["load 1.50 on 2 cores at the start", "others used 0.80 of 2 cores on average"]
    assert busy(read_costs(str(path))) == why
    assert busy(replace(costs, load=({"start": 0.1}, noted[1] | {"others": 0.0}))) == []
    assert busy(replace(costs, load=())) is None, "an old trace says nothing of its machine"
    assert busy(read_costs("c=0.1")) is None, "supposed costs were measured nowhere"

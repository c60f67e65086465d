from __future__ import annotations

from typing import Any

import pytest

from draftwise import UserError, method
from draftwise.cli.options import policy_names
from draftwise.measure.bench.run import Settings
from draftwise.measure.bench.tune import GRIDS, best, candidates, parse_grid


@pytest.mark.parametrize("policy", sorted(GRIDS.keys() - {"disco", "specdecpp"}))
def test_every_candidate_is_a_policy(policy: str) -> None:
    made = candidates(policy)
    assert len(set(made)) == len(made) > 3
    for text in made:
        method(text, ["a"])


@pytest.mark.parametrize("policy", ["disco", "specdecpp"])
def test_a_classifiers_file_stays_in_the_option_string(policy: str) -> None:
    made = candidates(f"{policy}?model=/some where/a.json")
    assert len(made) == len(GRIDS[policy]["threshold"])
    with pytest.raises(UserError, match=r"/some where/a\.json"):
        method(made[0], ["a"])


def test_grids_multiply_and_what_is_given_stays() -> None:
    assert candidates("static?drafter=b", {"length": ["1", "2"]}) == [
        "static?drafter=b&length=1",
        "static?drafter=b&length=2",
    ]
    both = candidates("svip", {"drafter": ["a", "zoo:b"]})
    assert len(both) == 2 * len(GRIDS["svip"]["threshold"])
    assert both[-1] == "svip?threshold=1.5&drafter=zoo:b"
    assert candidates("ucb1", {"strength": ["0.1", "1"]}) == ["ucb1?strength=0.1", "ucb1?strength=1"]
    with pytest.raises(UserError, match="nothing to tune in 'ucb1': give --grid"):
        candidates("ucb1")
    with pytest.raises(UserError, match="nothing to tune in 'static\\?length=4'"):
        candidates("static?length=4")


def test_a_grid_is_read() -> None:
    assert parse_grid(["threshold=0.2, 0.4", "length=5"]) == {"threshold": ["0.2", "0.4"], "length": ["5"]}
    for text in ("threshold", "=1", "threshold=", "threshold=1,,2"):
        with pytest.raises(UserError, match="write option=A,B"):
            parse_grid([text])


def test_the_best_is_the_fastest_over_all_prompts() -> None:
    def row(method: str, category: str, speedup: float, batch: int = 1) -> dict[str, Any]:
        return {"method": method, "category": category, "speedup": speedup, "batch": batch}

    rows = [row("none", "all", 9.0), row("a", "all", 1.2), row("b", "all", 1.3), row("a", "x", 5.0)]
    assert best(["a", "b"], [*rows, row("a", "all", 7.0, batch=8)])["method"] == "b"


def test_policies_are_told_apart_by_their_names() -> None:
    assert policy_names("none,static-4, svip?threshold=0.2") == ("none", "static-4", "svip?threshold=0.2")
    listed = "ucb1?arms=drafters*lengths&lengths=2,8&reward=rate"
    assert policy_names(f"{listed},none") == (listed, "none")
    assert policy_names(f"{listed} none ucb1") == (listed, "none", "ucb1")


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"batch": (1, 1)}, "batch=1,1: give sizes of at least 1, each once"),
        ({"batch": (0,)}, "batch=0"),
        ({"policies": ("ucb1", "ucb1")}, "policies: ucb1 is repeated"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
    ],
)
def test_settings_out_of_range_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Settings(workload="spec-bench", **wrong)

"""The numbers behind the pictures, against sums done by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise.measure.report import tables
from draftwise.measure.report.pictures import Missing, drafting, learning, speed
from draftwise.measure.report.records import Results, Rounds, Row, read, read_rounds


def rounds(*played: tuple[str, str, int, int], method: str = "m") -> Rounds:
    """Rounds of (category, arm, drafted, accepted), three a text."""
    lines: list[Mapping[str, Any]] = [
        {
            "method": method,
            "category": category,
            "prompt": i // 3,
            "round": i % 3,
            "arm": arm,
            "drafter": learning.drafter_of(arm),
            "length": 0 if arm == "none" else 5,
            "drafted": drafted,
            "accepted": accepted,
            "tokens": [0] * (accepted + 1),
        }
        for i, (category, arm, drafted, accepted) in enumerate(played)
    ]
    return read_rounds(lines)[method]


PLAYED = rounds(
    ("qa", "a:5", 5, 2),
    ("qa", "b:5", 5, 0),
    ("qa", "a:5", 5, 4),
    ("code", "b:5", 3, 3),
    ("code", "none", 0, 0),
)


def line(figure: Any, label: str) -> tuple[Sequence[float], Sequence[float]]:
    """The points of a line by its name, in the first axes that has it."""
    found = [one for ax in figure.axes for one in ax.get_lines() if one.get_label() == label]
    return list(found[0].get_xdata()), list(found[0].get_ydata())


def test_values_so_far_are_means_of_an_arms_own_rounds() -> None:
    at, means = learning.so_far(PLAYED)["a:5"]
    assert (at.tolist(), means.tolist()) == ([0, 2], [2.0, 3.0])


@pytest.mark.parametrize("length", [5, 9])
def test_hits_of_the_best_arm_by_category_or_of_its_drafter_where_the_arms_are_others(length: int) -> None:
    best = {"qa": f"a:{length}", "code": f"b:{length}"}
    found = learning.hits(PLAYED, best)
    assert found is not None and found.tolist() == [1, 0, 1, 1, 0]
    one = rounds(("qa", "a:16~svip(0.6)", 3, 1), ("qa", "a:16~adaedl(0.2)", 3, 1))
    assert learning.hits(one, best) is None, "it had no choice"


def test_the_best_fixed_arm_of_a_category_is_its_fastest() -> None:
    rows = [
        Row(method=f"static?drafter={d}", category=c, speedup=s, pulls={f"{d}:5": 3})
        for c, d, s in (("qa", "a", 1.1), ("qa", "b", 1.3), ("code", "a", 2.0), ("code", "b", 0.9))
    ]
    assert learning.best_fixed(Results(rows=tuple(rows))) == {"qa": "b:5", "code": "a:5"}
    with pytest.raises(Missing, match="fixed arms"):
        learning.best_fixed(Results(rows=tuple(rows[:1])))


def test_regret_adds_up_what_the_best_fixed_arm_would_have_saved() -> None:
    rows = (
        Row(method="static-1", speedup=1.2, pulls={"a:1": 9}),
        Row(method="static-2", speedup=1.1, pulls={"a:2": 9}),
        Row(method="ucb1", speedup=1.0, pulls={"a:1": 5, "a:2": 5}),
    )
    spent = {"static-1": ((4, 0.4), (6, 0.6)), "static-2": ((5, 0.1), (9, 0.2)), "ucb1": ((7, 0.3), (5, 0.9))}
    finished = [
        Row(method=m, prompt=str(i), rounds=n, seconds=s)
        for i in range(2)
        for m, both in spent.items()
        for n, s in [both[i]]
    ]
    unshared = Row(method="ucb1", prompt="2", rounds=99, seconds=99.0)
    figure = learning.regret(Results(rows=rows, finished=(*finished, unshared)))
    assert line(figure, "ucb1") == ([1, 2], [3, 2])  # against static-1, by rounds
    seconds = figure.axes[1].get_lines()[0].get_ydata()  # against static-2, by seconds
    assert list(np.asarray(seconds)) == pytest.approx([0.2, 0.9])


def test_moving_means_and_thin_lines() -> None:
    assert learning.moving(np.array([1.0, 2.0, 3.0, 6.0]), 2).tolist() == [1.0, 1.5, 2.5, 4.5]
    x, y = learning.thin(np.arange(5000), np.arange(5000) * 2)
    assert (len(x), x[0], x[-1], y[-1]) == (learning.POINTS, 0, 4999, 9998)


def test_names_of_arms_and_rewards() -> None:
    assert learning.drafter_of("zoo:code:5~svip(0.6)") == "zoo:code"
    assert learning.drafter_of("none") == "none"
    assert drafting.without_reward("t?reward=simple&length=9") == ("t?length=9", "simple")
    assert drafting.without_reward("t") == ("t", "default reward")


def test_shares_of_a_category() -> None:
    found = drafting.shares(PLAYED, "drafter", str, ["qa", "code", "empty"])
    assert found["b"].tolist() == pytest.approx([1 / 3, 1 / 2, 0.0])
    by_length = drafting.shares(PLAYED, "arm", drafting.manner, ["qa", "code"])
    assert {name: share.tolist() for name, share in by_length.items()} == {
        "length 5": pytest.approx([1.0, 0.5]),
        "none": pytest.approx([0.0, 0.5]),
    }
    assert drafting.manner("zoo:code:5~svip(0.6)") == "svip(0.6)"


def test_drafted_lengths_stand_where_their_rounds_begin() -> None:
    played = rounds(("qa", "a:5", 5, 2), ("qa", "b:5", 1, 0), ("qa", "a:5", 4, 4))
    results = Results(
        rows=(Row(method="m", speedup=1.0, pulls={"a:5": 2, "b:5": 1}),),
        rounds={"m": played},
        oracle={"0": ((0, "a", 3), (4, "b", 0))},
    )
    figure = drafting.lengths(results)
    assert line(figure, "m") == ([0, 3, 4], [5, 1, 4])
    assert line(figure, "oracle") == ([0, 4], [3, 0])


def test_entropies_are_split_at_the_first_refused_token() -> None:
    record = {"method": "m", "category": "qa", "length": 5, "accepted": 2, "entropy": [1.0, 2.0, 9.0, 5.0]}
    (found,) = read_rounds([record]).values()
    kept, refused = found.entropy["qa"]
    assert (kept.tolist(), refused.tolist()) == ([1.0, 2.0], [9.0])


def test_the_slowest_that_is_drawn_is_no_other_where_plain_decoding_is_slower_still() -> None:
    """The caption promises the slowest, and plain decoding is the line at 1."""
    fast = [Row(method=f"static-{n}", speedup=1.0 + n, pulls={f"a:{n}": 3}) for n in range(9, 0, -1)]
    results = Results(rows=(*fast, Row(method="none", speedup=1.0)))
    assert [row.name for row in speed.featured(results)] == ["static-9", "static-8", "static-1"]


def test_a_row_without_an_interval_has_a_dash(tmp_path: Path) -> None:
    rows = [{"method": "m", "speedup": 1.5, "interval": interval} for interval in (None, [1.4, 1.6])]
    (tmp_path / "results.json").write_text(json.dumps({"results": rows}))
    found = [cell[2].text for cell in tables.methods(read(tmp_path).rows).rows]
    assert found == ["\N{EN DASH}", "1.40 to 1.60"]


def test_kinds_and_names_of_rows() -> None:
    rows = [
        Row(method="none"),
        Row(method="static-5", pulls={"a:5": 3}),
        Row(method="ucb1", engine="replay", pulls={"a:5": 3, "b:5": 1}),
        Row(method="transformers:lookup", engine="transformers"),
    ]
    assert [row.kind for row in rows] == ["plain", "fixed", "adaptive", "peer"]
    assert [row.name for row in rows][2:] == ["ucb1", "transformers:lookup"]


def test_lines_are_those_of_the_arms_that_were_played_most() -> None:
    played = rounds(*[("qa", f"a:{n}", 1, 0) for n in range(1, 16) for _ in range(n)])
    lines = learning.values(
        Results(rows=(Row(method="m", pulls={"a:1": 1, "a:2": 2}),), rounds={"m": played})
    )
    legend = lines.axes[0].get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [f"a:{n}" for n in range(10, 16)]


def test_lengths_stand_in_their_order() -> None:
    played = rounds(*[("qa", f"a:{n}", n, 0) for n in (10, 2, 1)])
    row = Row(method="m", pulls={"a:1": 1, "a:2": 2})
    figure = drafting.arms(Results(rows=(row, replace(row, category="qa")), rounds={"m": played}))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["length 1", "length 2", "length 10"]


def test_divergence_is_over_the_rounds_a_drafter_had_near_each_place() -> None:
    """Both are tried once in a set round of every text; one of them is played on, and both have a line."""
    lines: list[Mapping[str, Any]] = []
    for place in range(240):
        drafter, number = "b" if place % 12 == 1 else "a", place % 12
        line_of = {"method": "m", "prompt": place // 12, "round": number, "arm": f"{drafter}:5", "length": 5}
        lines.append(line_of | {"drafter": drafter, "drafted": 5, "overlap": 0.25 if drafter == "b" else 0.5})
    found = read_rounds(lines)
    figure = learning.divergence(Results(rows=(Row(method="m"),), rounds=found))
    (x, y), (at, b) = line(figure, "a"), line(figure, "b")
    assert (x[0], x[-1]) == (0, 11) and y == pytest.approx([0.5] * 12)
    assert at == [1] and b == pytest.approx([0.25])

"""What can be seen in the pictures: contrast, legends, axes, and names that do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import radians, sin
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from draftwise.measure.report.pictures import PICTURES, Missing, speed
from draftwise.measure.report.records import Results, Row, read, read_rounds
from draftwise.measure.report.style import (
    COLOURS,
    LINES,
    SPEEDUPS,
    WIDE,
    brief,
    luminance,
    ratio_scale,
    ratio_ticks,
    readable,
    shades,
    styled,
    wrapped,
)

LONG = "tapout-seq-ucb1?reward=simple&length=16&drafter=zoo:summarization&rules=svip+adaedl+logit-margin&k=7"


def results(methods: Iterable[str], categories: Iterable[str] = ("qa", "code"), prompts: int = 9) -> Results:
    """A run of these methods with adaptive rounds, `auto` over 3 drafters and 4 lengths among them."""
    names, found = list(methods), ["all", *categories]
    rows = [
        Row(
            method=m,
            category=c,
            prompts=prompts,
            new_tokens=64,
            seconds=2.0 + i,
            speedup=1.6 / (1 + i) + 0.1 * j,
            interval=(1.5 / (1 + i), 1.7 / (1 + i) + 0.1 * j) if prompts > 4 else (np.nan, np.nan),
            tokens_per_s=30.0 - i,
            seconds_by_phase={"draft": 1.0, "verify": 2.0 + i, "accept": 1e-6},
            pulls={"a:1": 3, "b:2": 4},
        )
        for i, m in enumerate(names)
        for j, c in enumerate(found)
    ]
    arms = [f"{d}:{n}" for d in ("zoo:general", "zoo:code", "ngram") for n in (1, 2, 4, 8)]
    lines: list[Mapping[str, Any]] = [
        {
            "method": m,
            "category": found[1 + i % (len(found) - 1)],
            "prompt": i // 10,
            "round": i % 10,
            "arm": arm,
            "drafter": arm.rpartition(":")[0],
            "length": 4,
            "drafted": 4,
            "accepted": i % 5,
            "tokens": [0],
        }
        for m in names
        for i, arm in enumerate(arms * 10)
    ]
    return Results(rows=tuple(rows), rounds=read_rounds(lines))


CASES: Mapping[str, Callable[[], Results]] = {
    "many": lambda: results(
        [f"static-{n}?drafter=zoo:code" for n in range(30)], [f"task {i}" for i in range(13)]
    ),
    "long": lambda: results([LONG, LONG + "1", "auto"], ["multi-turn conversation", "qa"]),
    "one prompt": lambda: results(["auto", "none"], prompts=1),
    "none finished": lambda: Results(rows=(Row(method="auto"), Row(method="none", speedup=1.0))),
    "auto": lambda: results(["none", "auto"]),
}


@pytest.fixture(scope="module", params=[*CASES, "folder"])
def figures(request: pytest.FixtureRequest, whole: Path) -> dict[str, Figure]:
    """Every picture that these results have, drawn once, so that all places are known."""
    found = read(whole, [whole.parent / "phased"]) if request.param == "folder" else CASES[request.param]()
    drawn: dict[str, Figure] = {}
    with styled():
        for picture in PICTURES:
            try:
                figure = picture.draw(found)
            except Missing:
                continue
            renderer_of(figure)
            drawn[picture.name] = figure
    return drawn


def renderer_of(figure: Any) -> Any:
    """What draws the figure, after it has drawn it: only then are the places of all texts known."""
    canvas: Any = figure.canvas
    if not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return canvas.get_renderer()


def test_every_axis_is_named(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        assert any(ax.get_xlabel() for ax in figure.axes), name
        for ax in figure.axes:
            rows = [label.get_text() for label in ax.get_yticklabels()]
            numbers = all(text.strip("\N{MINUS SIGN}").replace(".", "").isdigit() for text in rows if text)
            besides = [other for other in figure.axes if other.get_subplotspec() != ax.get_subplotspec()]
            assert not numbers or ax.get_ylabel() or any(other.get_ylabel() for other in besides), name


def test_names_do_not_overlap(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        renderer = renderer_of(figure)
        for ax in figure.axes:
            upright = [label for label in beside(ax) if label.get_text()]
            boxes = sorted((label.get_window_extent(renderer) for label in upright), key=lambda box: box.y0)
            assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes)), name
            across = [label for label in ax.get_xticklabels() if label.get_text()]
            turned = radians(across[0].get_rotation()) if across else 0.0
            ends = sorted((label.get_window_extent(renderer) for label in across), key=lambda box: box.x1)
            for left, right in pairwise(ends):
                apart = (right.x1 - left.x1) * sin(turned) if turned else right.x0 - left.x1
                assert apart >= (float(across[0].get_fontsize()) * figure.dpi / 72 if turned else -1), name


def test_nothing_is_cut_off(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        renderer = renderer_of(figure)
        width, height = figure.bbox.width, figure.bbox.height
        shown = [text for ax in figure.axes for text in [*beside(ax), ax.xaxis.label, ax.yaxis.label]]
        shown = [text for text in shown if text.get_text() and text.get_visible()]
        boxes = [text.get_window_extent(renderer) for text in shown]
        boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
        for box in boxes:
            inside = box.x0 >= -2 and box.y0 >= -2 and box.x1 <= width + 2 and box.y1 <= height + 2
            assert inside, (name, box, width, height)


def beside(ax: Any) -> list[Any]:
    """The labels of the ticks within the axis."""
    low, high = sorted(ax.get_ylim())
    ticks = zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
    return [label for at, label in ticks if low <= at <= high]


def test_every_entry_of_a_legend_has_something_to_see(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        for legend in [*figure.legends, *(own for ax in figure.axes if (own := ax.get_legend()))]:
            for text in legend.get_texts():
                assert any(seen(ax, text.get_text()) for ax in figure.axes), (name, text.get_text())


def seen(ax: Any, label: str) -> bool:
    """Whether a labelled artist of these axes has an extent of a pixel or more."""
    for handle, mine in zip(*ax.get_legend_handles_labels(), strict=True):
        if brief(mine, 44) != label:
            continue
        line = handle[0] if isinstance(handle, tuple) else handle
        for part in getattr(handle, "patches", [line]):
            box = part.get_window_extent(renderer_of(ax.figure))
            marked = getattr(part, "get_marker", lambda: "None")() not in ("None", None, "")
            if np.isfinite(box.extents).all() and (marked or max(box.width, box.height) > 1):
                return True
    return False


def test_bars_start_at_zero(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        for ax in figure.axes:
            bars = [bar for container in ax.containers for bar in getattr(container, "patches", ())]
            if bars:
                sideways = len({round(bar.get_height(), 9) for bar in bars}) == 1
                low, high = ax.get_xlim() if sideways else ax.get_ylim()
                assert low == pytest.approx(0.0) and high > 0, name


def test_a_ratio_and_its_inverse_are_equally_strong() -> None:
    for values_ in ([0.62, 1.1], [1.0], [0.2, 4.0]):
        scale = ratio_scale(values_)
        assert float(scale(1.0)) == pytest.approx(0.5)
        for ratio in (0.62, 0.9, 1.3):
            assert float(scale(ratio)) == pytest.approx(1 - float(scale(1 / ratio)))
        ticks = ratio_ticks(scale.vmin or 0.0, scale.vmax or 0.0)
        assert 1.0 in ticks and len(ticks) >= 3
    assert float(ratio_scale([float("nan"), 1.6])(1.6)) == pytest.approx(1.0)


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """The contrast ratio of two colours, 1 to 21; text needs 4.5 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_can_be_read_on_every_colour_of_the_heat_map() -> None:
    for hue in colormaps[SPEEDUPS](np.linspace(0, 1, 256)):
        assert contrast(to_rgb(readable(hue)), hue) >= 4.5
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21.0)


@pytest.mark.parametrize("page", ["#ffffff", "#16181c"])
def test_lines_and_bars_can_be_seen_on_light_and_dark_pages(page: str) -> None:
    for hue in [*COLOURS, *shades(5)[1:]]:
        assert contrast(to_rgb(hue), to_rgb(page)) >= 1.9


def test_the_heat_map_has_a_labelled_colour_bar_and_the_numbers_of_its_cells() -> None:
    found = results(["auto", "none"], ["qa", "code"])
    figure = speed.categories(found)
    grid, bar = figure.axes
    assert "speed-up" in bar.get_ylabel() and "log" in bar.get_ylabel()
    assert any("\N{MULTIPLICATION SIGN}" in label.get_text() for label in bar.get_yticklabels())
    assert [text.get_text() for text in grid.texts][:3] == ["1.60", "1.70", "1.80"]


def test_names_are_wrapped_between_their_parts() -> None:
    assert wrapped("static-5?drafter=zoo:code") == "static-5?drafter=zoo:code"
    lines = wrapped(LONG).split("\n")
    assert len(lines) <= LINES and all(len(line) <= WIDE for line in lines)
    assert lines[0] == "tapout-seq-ucb1?reward=simple&"
    assert brief("abcdefgh", 5) == "ab\N{HORIZONTAL ELLIPSIS}gh"
    assert max(map(len, wrapped("x" * 200).split("\n"))) <= WIDE


def test_phases_too_small_to_see_count_among_other() -> None:
    figure = speed.phases(results(["auto"]))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["draft", "verify"] or labels == ["draft", "verify", "other"]

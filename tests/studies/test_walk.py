"""Following a value: by content, through containers, and without what only holds it in `self`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from studies import walk

SOURCE = """
class Box:
    def __init__(self, content):
        self.content = content

    def look(self):
        return None

    def take(self):
        return self.content


def first(text, other):
    return second({"deep": [text]})


def second(held):
    aside(1)
    box = Box(len(held))
    box.look()
    return Box(held["deep"][0]).take()


def aside(number):
    return number
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "walked_here.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import walked_here  # type: ignore[import-not-found]

    yield walked_here
    del sys.modules["walked_here"]


def carries(value: Any) -> bool:
    return isinstance(value, str) and "MARK" in value


def test_whatever_receives_or_returns_the_value_is_passed(module: Any, tmp_path: Path) -> None:
    passed = walk.walked(tmp_path, carries, walk.nothing, lambda: module.first("a MARK", 0))
    assert [name.removeprefix("walked_here.") for name in passed] == [
        "first",
        "second",
        "Box.__init__",
        "Box.take",
    ]
    assert sys.getprofile() is None


def test_followed_values_are_told_to_the_follower(module: Any, tmp_path: Path) -> None:
    told: list[tuple[str, Any]] = []

    def follow(frame: FrameType, value: Any) -> None:
        told.append((frame.f_code.co_name, value))

    walk.walked(tmp_path, carries, follow, lambda: module.first("MARK", 0))
    assert ("take", "MARK") in told and "aside" not in dict(told)


def test_how_far_a_value_goes() -> None:
    passed = ["cli.a.f", "core.b.g", "core.b.h", "cli.a.k"]
    assert walk.summary(passed) == "4 functions, 2 modules, 2 rooms, 2 crossings"


def test_token_ids_are_found_in_a_longer_row() -> None:
    assert walk.holds([9, 1, 2, 3, 9], [1, 2, 3]) and not walk.holds([1, 2], [1, 2, 3])
    assert not walk.holds(["x"], [1])

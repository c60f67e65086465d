"""The numbers of the architecture, on a package small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import house

FILES = {
    "__init__.py": "",
    "low.py": "def short():\n    return 1\n",
    "middle/__init__.py": "from ..low import short\n",
    "middle/a.py": "from . import b\nfrom draftwise.low import short\n",
    "middle/b.py": "def late():\n    from .a import short\n    return short\n",
    "top.py": (
        "from typing import TYPE_CHECKING\nfrom .middle.a import short\n"
        "if TYPE_CHECKING:\n    from .roof import never\n" + "x = 1\n" * 500
    ),
    "roof.py": "import draftwise.top\nimport json\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "src" / "draftwise" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "src" / "draftwise"


def test_a_small_house(package: Path) -> None:
    found = house.counted(package)
    assert found.entries == 5 and found.modules == 6
    assert found.floors == 4  # roof, top, middle, low: what only types need does not count
    assert found.arrows_between_rooms == 3
    assert found.arrows_between_modules == 6
    assert found.circles_of_rooms == [] and found.circles_of_modules == [["middle.a", "middle.b"]]
    assert found.long_files == ["top.py (504)"]
    assert found.short_files == ["low.py (2)", "middle/a.py (2)", "middle/b.py (3)", "roof.py (2)"]
    assert found.longest_function == "3 (middle/b.py:1 late)"
    assert (found.function_median, found.function_90th_percentile) == pytest.approx((2.5, 2.9))


def test_a_circle_is_one_floor() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert house.circles(graph) == [["b", "c"]] and house.floors(graph) == 3

from __future__ import annotations

from pathlib import Path

import pytest

from draftwise.measure.report import write_report

from . import folder as made


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all data, and its report beside a second run's."""
    base = tmp_path_factory.mktemp("report")
    other = made.write(base / "phased", "phased")
    write_report(made.write(base / "mixed"), beside=[other])
    return base / "mixed"

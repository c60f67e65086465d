"""From a folder of results to the report that people look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..writing import write_text
from . import tables
from .data import read, readable
from .html import page
from .markdown import markdown
from .story import tell

NOBODY: Mapping[str, Any] = {"policies": (), "arms": ()}


def write_report(folder: Path, *, beside: Sequence[Path] = ()) -> None:
    """Write `report.md`, `report.html` and `pictures/*.png` into a folder of results.

    Runs in the folders `beside` are compared with it in one more picture.

    Raises:
        UserError: the folder has no results, or a file in it is damaged.
        OSError: a file of the report cannot be written.
    """
    results = read(folder, beside)
    with readable(folder):  # simulations and optima are read where they are shown
        tables.policies(results.simulation or NOBODY)
        tables.simulated_arms(results.simulation or NOBODY)
        tables.optimum(results.optimum)
    story = tell(results, folder / "pictures")
    write_text(folder / "report.md", markdown(results, story))
    write_text(folder / "report.html", page(results, story))

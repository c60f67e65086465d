"""The report that people look at: tables and pictures of what was measured, replayed or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..writing import write_text
from . import tables
from .markdown import markdown
from .page import page
from .records import read, readable
from .story import tell_story

__all__ = ["write_report"]


def write_report(folder: Path, *, beside: Sequence[Path] = ()) -> None:
    """Write `report.md`, `report.html` and `pictures/*.png` into a folder of results.

    Runs in the folders `beside` are compared with it in one more picture.

    Raises:
        UserError: the folder has no results, or a file in it is damaged.
        OSError: a file of the report cannot be written.
    """
    results = read(folder, beside)
    with readable(folder):  # simulations and optima are read where they are shown
        simulation = results.simulation or {"policies": (), "arms": ()}
        tables.policies(simulation)
        tables.simulated_arms(simulation)
        tables.optimum(results.optimum)
    story = tell_story(results, folder / "pictures")
    write_text(folder / "report.md", markdown(results, story))
    write_text(folder / "report.html", page(results, story))

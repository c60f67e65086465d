"""From a folder of results to the report that people look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .data import read
from .html import page
from .markdown import markdown
from .story import tell


def write_report(folder: Path, *, beside: Sequence[Path] = ()) -> None:
    """Write `report.md`, `report.html` and `pictures/*.png` into a folder of results.

    Runs in the folders `beside` are compared with it in one more picture.

    Raises:
        UserError: the folder has no results, or a file in it is damaged.
    """
    results = read(folder, beside)
    story = tell(results, folder / "pictures")
    (folder / "report.md").write_text(markdown(results, story), encoding="utf-8")
    (folder / "report.html").write_text(page(results, story), encoding="utf-8")
